"""Which calls of a pass take the processor's time: the host thread's own, turn by turn, and that of
every thread, for compute alone, two plain buffers, and streams from pinned memory and pages."""

import glob
import json
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

from forebay.stream_bench import model as files, residency
from forebay.stream_bench.compute import Compute
from forebay.stream_bench.shape import Shape
from forebay.stream_bench.ways.forebay import Forebay
from forebay.stream_bench.ways.pinned import Pinned

path, layers, nbytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) * 1_000_000 // 4096 * 4096
out, tokens = Path(sys.argv[4]), [int(n) for n in sys.argv[5].split(",")]
made = files.made(path, layers, nbytes, "cuda:0", 1)
residency.touch(path)
shape = Shape(5120, 96, 8, 128, 1536, 8)


def threads():
    found = defaultdict(float)
    for task in glob.glob("/proc/self/task/*"):
        try:
            name = Path(task, "comm").read_text().strip()
            found[name] += int(Path(task, "schedstat").read_text().split()[0]) / 1e9
        except OSError:
            pass
    return found


ways = {"two-buffers": Pinned(made, "pinned", "cuda:0", 3), "pinned": Forebay(made, "pinned", "cuda:0", 3),
        "mapped": Forebay(made, "mapped", "cuda:0", 3)}
end = torch.cuda.Event(blocking=True)
result = []
for count in tokens:
    compute = Compute(shape, count, "cuda:0", backward=False)
    for name in ("alone", *ways):
        found = []
        for number in range(-4, 3):
            numbers = made.passes("forward", number)
            calls, last = [], [time.thread_time()]
            def use(*_):
                begun = time.thread_time()
                compute.run()
                done = time.thread_time()
                calls.append((begun - last[0], done - begun))
                last[0] = done
            torch.cuda.synchronize()
            before, started = threads(), time.perf_counter()
            last[0] = time.thread_time()
            if name == "alone":
                for _ in numbers:
                    use()
            else:
                ways[name].run(numbers, compute.stream, use)
            rest = time.thread_time() - last[0]
            end.record(compute.stream)
            end.synchronize()
            wall = time.perf_counter() - started
            spent = {who: took - before.get(who, 0) for who, took in threads().items()}
            spent = {who: took for who, took in spent.items() if took > 1e-4}
            if number >= 0:
                found.append({"wall_s": wall, "take_s": [c[0] for c in calls], "run_s": [c[1] for c in calls],
                              "rest_s": rest, "threads": spent})
        result.append({"tokens": count, "way": name, "passes": found})
        one = found[-1]
        ms = lambda numbers: [round(1e3 * n, 2) for n in numbers]
        print(count, name, "wall", round(one["wall_s"], 3), "take", ms(one["take_s"]), "run", ms(one["run_s"]),
              "rest", round(1e3 * one["rest_s"], 2), {k: round(1e3 * v, 1) for k, v in one["threads"].items()}, flush=True)
    del compute
(out / "cpu.json").write_text(json.dumps(result))
