"""Orders that a stream knows by itself, pass behind pass without a pause, against a simulation of as
many passes with this compute, this link and these buffers."""

import json
import statistics
import sys
import time
from pathlib import Path

import torch

import forebay
from forebay.stream import LayerStream
from forebay.stream_bench import model as files
from forebay.stream_bench import residency, theory
from forebay.stream_bench.compute import Compute
from forebay.stream_bench.shape import Shape
from forebay.stream_bench.ways.pinned import Pinned

path, layers, nbytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) * 1_000_000 // 4096 * 4096
out, tokens, rounds = Path(sys.argv[4]), [int(n) for n in sys.argv[5].split(",")], int(sys.argv[6])
made = files.made(path, layers, nbytes, "cuda:0", 1)
residency.touch(path)
shape = Shape(5120, 96, 8, 128, 1536, 8)
PASSES, ROOM = 12, 3
link = Pinned(made, "pinned", "cuda:0", ROOM)


def timed(work):
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


def steady(work):
    """Seconds of a pass that follows others."""
    few, many = timed(lambda: work(2)), timed(lambda: work(PASSES))
    return (many - few) / (PASSES - 2)


found = []
for count in tokens:
    compute = Compute(shape, count, "cuda:0", backward=False)
    for order, name in (("forward", "forward"), ("training", "train")):
        turns = theory.turns(name, layers)
        for source in ("pinned", "page-cache", "mapped"):
            whole = layers * (nbytes + 65536)
            budgets = {"host_budget": whole if source == "pinned" else 0,
                       "mapped_budget": whole if source == "mapped" else 0}
            with forebay.open(path) as file, LayerStream(
                [[(file, made.offset(n), nbytes)] for n in range(layers)], "cuda:0", order=order,
                gpu_budget=ROOM * nbytes, stream=compute.stream, **budgets,
            ) as stream:
                def run(passes):
                    for _ in range(passes):
                        for _ in stream:
                            compute.run()
                for _ in range(6):  # placed, pinned
                    run(1)
                    torch.cuda.synchronize()
                before = stream.statistics()["passes"]
                ratios, walls = [], []
                for _ in range(rounds):
                    alone = steady(lambda n: [compute.run() for _ in range(n * len(turns))]) / len(turns)
                    each = steady(lambda n: link.transfer(list(range(layers)) * n)) / layers
                    many = theory.simulated(theory.plan(turns * 20, ROOM), [alone] * (20 * len(turns)), each)
                    one = theory.simulated(theory.plan(turns * 8, ROOM), [alone] * (8 * len(turns)), each)
                    line = (many.time - one.time) / 12
                    wall = steady(run)
                    walls.append(wall)
                    ratios.append(wall / line)
                reads = (many.reads - one.reads) / 12
                behind = stream.statistics()["passes"][len(before):]
                placement = stream.placement()
            brought = statistics.median(p["brought"] for p in behind)
            point = {"tokens": count, "order": order, "from": source, "ratios": ratios, "walls_s": walls, "compute_s": alone,
                     "transfer_s": each, "reads": brought, "least": reads,
                     "predicted_s": placement and placement["pass_s"], "tiers": placement and placement["tiers"]}
            found.append(point)
            (out / "orders.json").write_text(json.dumps(found))
            print(count, order, source, "over the line", round(statistics.median(ratios), 3), [round(r, 3) for r in ratios],
                  "reads", brought, "of", reads, "predicted over measured",
                  placement and round(statistics.median(walls) / placement["pass_s"], 3), flush=True)
    del compute
