"""Passes of streams from the page cache, by the number of readers, in turn with each other and with plain copies."""
import json, os, random, resource, sys, time
from statistics import median
import torch, forebay
from forebay.stream import LayerStream
path, out, layers, mb, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
EACH = mb * 1_000_000 // 4096 * 4096
N = layers * EACH
if not os.path.exists(path) or os.path.getsize(path) < N:
    with open(path, "wb") as f:
        block = os.urandom(64 << 20)
        for at in range(0, N, len(block)): f.write(block[: N - at])
with open(path, "rb", buffering=0) as f:
    room = bytearray(64 << 20)
    while f.readinto(room): pass
torch.cuda.init()
def cpu():
    r = resource.getrusage(resource.RUSAGE_SELF); return r.ru_utime + r.ru_stime
pinned = torch.empty(EACH, dtype=torch.uint8).pin_memory()
target = torch.empty(EACH, dtype=torch.uint8, device="cuda")
def link():
    for _ in range(layers): target.copy_(pinned, non_blocking=True)
    torch.cuda.synchronize()
    return N
def stream(**options):
    e = forebay.Engine(**options); f = e.open(path)
    s = LayerStream([[(f, n * EACH, EACH)] for n in range(layers)], "cuda", order="told", stream=0,
                    gpu_budget=3 * EACH, mapped_budget=0, engine=e)
    turn = [0]
    def go():
        turn[0] += 1
        before = sum(one["file_bytes"] for one in s.statistics()["passes"])
        s.prefetch(list(range(layers)))
        for layer in s: pass
        torch.cuda.synchronize()
        return sum(one["file_bytes"] for one in s.statistics()["passes"]) - before
    return go
whole = torch.empty(min(N, 5_000_000_000), dtype=torch.uint8, device="cuda")
def engine(**options):
    e = forebay.Engine(**options); f = e.open(path)
    def go():
        assert f.read_into(whole) == whole.numel(); return whole.numel()
    return go
ways = {"link": link, "stream": stream()}
for n in (8, 9, 10, 11, 12, 13, 14, 15, 16): ways[f"stream {n}"] = stream(readers=n)
ways["whole"] = engine(); ways["whole 12"] = engine(readers=12)
found = {n: [] for n in ways}
rng = random.Random(1)
for r in range(rounds):
    order = list(ways); rng.shuffle(order)
    for n in order:
        for place in range(3 if n != "link" else 1):
            c, b = cpu(), time.perf_counter()
            nbytes = ways[n]()
            took = time.perf_counter() - b
            found[n].append({"round": r, "place": place, "bytes": nbytes, "wall_s": took, "cpu_s": cpu() - c})
print(layers, mb)
l = median(x["bytes"] / x["wall_s"] for x in found["link"]) / 1e9
for n, v in found.items():
    row = []
    for place in (0, 1, 2):
        w = [x for x in v if x["place"] == place and x["round"] > 0]
        if w: row.append("%.1f GB/s %.3f (%.1f busy)" % (median(x["bytes"] / x["wall_s"] for x in w) / 1e9, l / (median(x["bytes"] / x["wall_s"] for x in w) / 1e9), median(x["cpu_s"] / x["wall_s"] for x in w)))
    print(n.ljust(12), " | ".join(row), flush=True)
json.dump(found, open(out, "w"))
