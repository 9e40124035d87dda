"""What layers take that are written back behind the compute, beside the same without, and beside writes alone."""
import json, os, sys, time
from statistics import median
import torch
import forebay
from forebay.stream import LayerStream
from forebay.stream_bench.compute import Compute
from forebay.stream_bench.shape import Shape
out, path = sys.argv[1], sys.argv[2]
COUNT, EACH = 12, 200_000_000 // 4096 * 4096
if not os.path.exists(path):
    with open(path, "wb") as f:
        block = os.urandom(1 << 20)
        for _ in range(COUNT * EACH // len(block) + 1): f.write(block)
told = {"path": path, "samples": []}
file = forebay.open(path, "r+")
for tokens in (1024, 4096, 16384):
    compute = Compute(Shape(), tokens, "cuda:0", backward=False)
    torch.cuda.synchronize()
    layers = [[(file, n * EACH, EACH)] for n in range(COUNT)]
    stream = LayerStream(layers, "cuda:0", gpu_budget=3 * EACH, mapped_budget=0, stream=compute.stream)
    source = torch.empty(EACH, dtype=torch.uint8, device="cuda").random_()
    def passed(back, work=True):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for layer in stream:
            if work: compute.run()
            if back: layer.write_back()
        if back: stream.flush()
        torch.cuda.synchronize()
        return time.perf_counter() - began
    def alone():
        torch.cuda.synchronize(); began = time.perf_counter()
        for _ in range(COUNT): compute.run()
        torch.cuda.synchronize()
        return time.perf_counter() - began
    def writes():
        began = time.perf_counter()
        for n in range(COUNT): file.write_from(source, n * EACH)
        return time.perf_counter() - began
    ways = {"compute": alone, "layers": lambda: passed(False), "transfer and write-back": lambda: passed(True, False), "layers and write-back": lambda: passed(True), "writes": writes}
    for n in range(6):
        for name in (list(ways) if n % 2 == 0 else list(ways)[::-1]):
            took = ways[name]()
            if n: told["samples"].append({"tokens": tokens, "way": name, "round": n, "took_s": took})
    stream.close()
    for name in ways:
        print(tokens, name, round(median(s["took_s"] for s in told["samples"] if s["tokens"] == tokens and s["way"] == name) * 1e3, 1), "ms", flush=True)
json.dump(told, open(out, "w"))
