"""Whether a drive is slower while the GPU computes: plain reads by threads, a read to the GPU, and
streams of layers, each with compute of several sizes beside it and without, in turn."""

import json
import random
import sys
import threading
import time
from pathlib import Path

import torch

import forebay
from forebay.stream import LayerStream
from forebay.stream_bench import model as files
from forebay.stream_bench import residency
from forebay.stream_bench.compute import Compute
from forebay.stream_bench.raw import Raw
from forebay.stream_bench.shape import Shape

path, out, rounds, layers = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
nbytes = 200_000_000 // 4096 * 4096
made = files.made(path, 24, nbytes, "cuda:0", 1)
numbers = list(range(layers))
shape = Shape(5120, 96, 8, 128, 1536, 8)
computes = {tokens: Compute(shape, tokens, "cuda:0", backward=False) for tokens in (1024, 4096, 16384)}
raw = Raw(path, nbytes, numbers)
print("raw", raw.kind, raw.tried, flush=True)
last = [None]
room = torch.empty(layers * nbytes, dtype=torch.uint8, device="cuda:0")
file = forebay.open(path)
stream = LayerStream([[(file, made.offset(n), nbytes)] for n in range(24)], "cuda:0", order="told",
                     stream=0, gpu_budget=3 * nbytes, host_budget=0, mapped_budget=0)


class Busy:
    """Keeps the GPU computing while it is entered."""

    def __init__(self, compute):
        self.compute, self.on = compute, True
        self.thread = threading.Thread(target=self.run)

    def run(self):
        marks = [torch.cuda.Event(blocking=True) for _ in range(2)]
        number = 0
        while self.on:
            if number > 1:
                marks[number % 2].synchronize()
            self.compute.run()
            marks[number % 2].record(self.compute.stream)
            number += 1

    def __enter__(self):
        self.thread.start()
        time.sleep(0.05)

    def __exit__(self, *_):
        self.on = False
        self.thread.join()


def plain():
    file.read_into(room, 0, size=layers * nbytes)


def streamed(compute):
    def work():
        last[0] = stream._compute = compute.stream if compute else torch.cuda.current_stream()
        stream.prefetch(numbers)
        for _ in stream:
            if compute:
                compute.run()
    return work


def timed(work, beside):
    residency.evict(path)
    torch.cuda.synchronize()
    busy = Busy(beside) if beside else None
    if busy:
        busy.__enter__()
    cpu, started = time.process_time(), time.perf_counter()
    work()
    if not busy:
        end = torch.cuda.Event(blocking=True)
        end.record(last[0] or torch.cuda.current_stream())
        end.synchronize()
    took = time.perf_counter() - started, time.process_time() - cpu
    if busy:
        busy.__exit__()
    torch.cuda.synchronize()
    return took


def alone(compute):
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in numbers:
        compute.run()
    torch.cuda.synchronize()
    return time.perf_counter() - started


cases = {"raw": (None, lambda: raw.read(numbers)), "plain": (None, plain)}
for tokens in (4096, 16384):
    cases[f"raw beside {tokens}"] = (computes[tokens], lambda: raw.read(numbers))
    cases[f"plain beside {tokens}"] = (computes[tokens], plain)
cases["stream"] = (None, streamed(None))
for tokens, compute in computes.items():
    cases[f"stream {tokens}"] = (None, streamed(compute))
found = []
for number in range(-1, rounds):
    names = list(cases)
    random.Random(number).shuffle(names)
    for name in names:
        beside, work = cases[name]
        wall, cpu = timed(work, beside)
        if number >= 0:
            told = stream.statistics()
            found.append({"round": number, "case": name, "wall_s": wall, "cpu_s": cpu,
                          "layers": told["layers"][-layers:] if name.startswith("stream") else None,
                          "pass": told["passes"][-1] if name.startswith("stream") else None})
    if number == rounds - 1:
        stream.write_trace(out / "trace.json")
bytes_ = layers * nbytes
for name in cases:
    walls = sorted(one["wall_s"] for one in found if one["case"] == name)
    print(f"{name:22} median {walls[len(walls) // 2]:.3f} s {bytes_ / walls[len(walls) // 2] / 1e9:.2f} GB/s",
          [round(w, 3) for w in walls], flush=True)
for tokens, compute in computes.items():
    alone(compute)
    print(tokens, "compute alone", round(alone(compute), 4))
(out / "beside.json").write_text(json.dumps({"raw": [*raw.kind], "layers": layers, "nbytes": nbytes, "samples": found}, default=str))
stream.close()
