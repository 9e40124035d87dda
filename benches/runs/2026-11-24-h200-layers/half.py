"""Layers half of which are pinned, in told passes with compute of several sizes, in turn with plain
reads of the layers that come from the drive: when each of these came."""

import json
import sys
import time
from pathlib import Path
from statistics import median

import torch

from forebay.stream_bench import model as files
from forebay.stream_bench import residency
from forebay.stream_bench.compute import Compute
from forebay.stream_bench.raw import Raw
from forebay.stream_bench.shape import Shape
from forebay.stream_bench.sources import from_drive
from forebay.stream_bench.ways.forebay import Forebay

path, out, rounds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
layers, nbytes = 24, 200_000_000 // 4096 * 4096
made = files.made(path, layers, nbytes, "cuda:0", 1)
shape = Shape(5120, 96, 8, 128, 1536, 8)
computes = {tokens: Compute(shape, tokens, "cuda:0", backward=False) for tokens in (1024, 4096, 16384)}
raw = Raw(path, nbytes, from_drive("half", made.passes("forward", 0), layers))
print("raw", raw.kind, flush=True)
end = torch.cuda.Event(blocking=True)
found = []
for source in ("half", "drive"):
    way = Forebay(made, source, "cuda:0", 3)
    number = 0
    for turn in range(-1, rounds):
        for tokens, compute in list(computes.items())[:: 1 if turn % 2 else -1]:
            for what in ("raw", "stream") if turn % 2 else ("stream", "raw"):
                taken = made.passes("forward", number)
                residency.evict(path)
                until = time.perf_counter() + 0.25
                while time.perf_counter() < until:
                    compute.run()
                    end.record(compute.stream)
                    end.synchronize()
                torch.cuda.synchronize()
                started = time.perf_counter()
                if what == "raw":
                    raw.read(from_drive(source, taken, layers))
                else:
                    way.run(taken, compute.stream, lambda *_: compute.run())
                    end.record(compute.stream)
                    end.synchronize()
                wall = time.perf_counter() - started
                told = way._stream.statistics()["layers"][-layers:] if what == "stream" else None
                number += 1
                if turn >= 0:
                    keep = ("position", "bytes", "drive_bytes", "pinned", "began_s", "entered_s", "transfer_s", "compute_s", "stall_s")
                    told = told and [{key: round(one[key], 6) if isinstance(one[key], float) else one[key] for key in keep} for one in told]
                    found.append({"source": source, "round": turn, "tokens": tokens, "what": what, "wall_s": wall, "layers": told})
    for tokens in computes:
        of = lambda what: [one["wall_s"] for one in found if (one["source"], one["tokens"], one["what"]) == (source, tokens, what)]
        pairs = [stream / plain for stream, plain in zip(of("stream"), of("raw"))]
        print(source, tokens, "stream", round(median(of("stream")), 3), "raw", round(median(of("raw")), 3),
              "median of pairs", round(median(pairs), 3), [round(one, 3) for one in pairs], flush=True)
    way.close()
(out / "half.json").write_text(json.dumps({"raw": [*raw.kind], "samples": found}))
