"""Layers from the drive beside raw reads, and half of them pinned as the planner places them."""

import json
import mmap
import os
import statistics
import sys
import threading
import time
from pathlib import Path

import torch

import forebay
from forebay.stream import LayerStream
from forebay.stream_bench import model as files
from forebay.stream_bench.compute import Compute
from forebay.stream_bench.shape import Shape
from forebay.stream_bench.ways.forebay import Forebay
from forebay.stream_bench.ways.pinned import Pinned

PAIRS = int(sys.argv[5]) if len(sys.argv) > 5 else 9
RAW = {"piece": 4 << 20, "threads": 8}  # the fastest of those tried below
layers, nbytes, out = int(sys.argv[1]), int(sys.argv[2]) * 1_000_000 // 4096 * 4096, Path(sys.argv[3])
tokens = [int(n) for n in sys.argv[4].split(",")]
path = Path("drive.bin")
made = files.made(path, layers, nbytes, "cuda:0", 1)
shape = Shape(5120, 96, 8, 128, 1536, 8)


def raw(numbers):
    """Seconds of plain reads past the page cache, by threads."""
    PIECE, THREADS = RAW["piece"], RAW["threads"]
    todo = [made.offset(n) + at for n in numbers for at in range(0, nbytes, PIECE)]
    ends = {n: made.offset(n) + nbytes for n in numbers}
    lock = threading.Lock()

    def work():
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        memory = mmap.mmap(-1, PIECE)
        while True:
            with lock:
                if not todo:
                    break
                at = todo.pop(0)
            end = ends[at // nbytes]
            os.preadv(fd, [memoryview(memory)[: min(PIECE, end - at)]], at)
        os.close(fd)

    started = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return time.perf_counter() - started


def timed(work):
    torch.cuda.synchronize()
    started = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - started


tried = {}
for threads in (8, 16, 32, 64):
    for piece in (1 << 20, 4 << 20):
        RAW.update(piece=piece, threads=threads)
        files.evict(path)
        tried[(threads, piece)] = raw(range(layers))
best = min(tried, key=tried.get)
RAW.update(threads=best[0], piece=best[1])
print("raw reads:", {f"{t} x {p >> 20} MiB": round(layers * nbytes / s / 1e9, 2) for (t, p), s in tried.items()}, "GB/s; taken:", best)
result = {"raw": {f"{t} x {p >> 20} MiB": s for (t, p), s in tried.items()}, "taken": RAW, "layers": layers, "nbytes": nbytes, "points": []}
link = Pinned(made, "pinned", "cuda:0", 3)
transfer = statistics.median(timed(lambda: link.transfer(list(range(layers)))) for _ in range(5))
way = Forebay(made, "drive", "cuda:0", 3)
for count in tokens:
    compute = Compute(shape, count, "cuda:0", backward=False)
    alone = statistics.median(
        timed(lambda: [compute.run() for _ in range(layers)]) for _ in range(3)
    )
    pairs = []
    for number in range(-1 if PAIRS else 0, PAIRS):
        numbers = made.passes("forward", number)

        def streamed():
            files.evict(path)
            return timed(lambda: way.run(numbers, compute.stream, lambda *_: compute.run()))

        def plain():
            files.evict(path)
            return raw(numbers)

        if number % 2:
            pair = (streamed(), plain())
        else:
            pair = (plain(), streamed())[::-1]
        if number >= 0:
            pairs.append(pair)
    if not pairs:
        continue
    edge = lambda reads: min(alone, max(reads, transfer)) / layers
    ratios = [s / (max(alone, r, transfer) + edge(r)) for s, r in pairs]
    point = {"tokens": count, "compute_s": alone, "transfer_s": transfer, "pairs": pairs, "ratios": ratios}
    result["points"].append(point)
    print(f"drive, {count} tokens: compute {alone:.3f} s, link {transfer:.3f} s, raw "
          f"{statistics.median(r for _, r in pairs):.3f} s, pass {statistics.median(s for s, _ in pairs):.3f} s, "
          f"pass over the line {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
way.close()

# Half pinned, half on the drive, as the planner places them: a stream of its own for each trial,
# whose passes behind the plan are held against what that said.
TRIALS = 9
for count in tokens:
    compute = Compute(shape, count, "cuda:0", backward=False)
    alone = statistics.median(
        timed(lambda: [compute.run() for _ in range(layers)]) for _ in range(3)
    )
    trials = []
    for number in range(TRIALS):
        files.evict(path)
        file = forebay.open(path)
        with LayerStream([[(file, made.offset(n), nbytes)] for n in range(layers)], "cuda:0",
                         gpu_budget=3 * nbytes, host_budget=layers // 2 * (nbytes + 65536),
                         mapped_budget=0, stream=compute.stream) as stream:
            def one():
                for _ in stream:
                    compute.run()
            began = timed(one)
            for _ in range(9):  # the plan is made while a pass is under way; what is pinned comes in the next
                filled = timed(one)
                if stream.placement() is not None:
                    break
            placement = stream.placement()
            timed(one)
            passes = [timed(one) for _ in range(3)]
        file.close()
        on_drive = [n for n, tier in enumerate(placement["tiers"]) if tier in ("drive", "page_cache")]
        files.evict(path)
        trials.append({"first_s": began, "second_s": filled, "passes": passes, "placement": placement,
                       "raw_s": raw(on_drive)})
    ratios = [statistics.median(t["passes"]) / t["placement"]["pass_s"] for t in trials]
    drive = statistics.median(t["raw_s"] for t in trials)
    linked = max(transfer * (layers - t["placement"]["tiers"].count("gpu")) / layers for t in trials)
    line = max(alone, linked, drive)
    wall = statistics.median(p for t in trials for p in t["passes"])
    result["points"].append({"half": True, "tokens": count, "compute_s": alone, "trials": trials, "line_s": line})
    print(f"half, {count} tokens: {trials[0]['placement']['tiers']}, pass over prediction {statistics.median(ratios):.3f} "
          f"({[round(r, 2) for r in ratios]}), pass {wall:.3f} s, line {line:.3f} s ({wall / line:.3f}, with edge "
          f"{wall / (line + min(alone, line) / layers):.3f})", flush=True)
out.write_text(json.dumps(result, indent=1) + "\n")
