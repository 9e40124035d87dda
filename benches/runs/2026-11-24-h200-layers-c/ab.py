"""Passes of a stream from the drive, by itself; run in turn with another version of the engine."""
import json, os, sys, time
import torch, forebay
from forebay.stream import LayerStream
path, out, name, passes = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
L, EACH = 12, 200_000_000 // 4096 * 4096
N = L * EACH
if not os.path.exists(path):
    with open(path, "wb") as f:
        block = os.urandom(64 << 20)
        for at in range(0, N, len(block)): f.write(block[: N - at])
        os.fsync(f.fileno())
e = forebay.Engine()
f = e.open(path)
s = LayerStream([[(f, n * EACH, EACH)] for n in range(L)], "cuda", order="told", stream=0,
                gpu_budget=3 * EACH, mapped_budget=0, engine=e)
target = torch.empty(N, dtype=torch.uint8, device="cuda")
found = {"stream": [], "engine": [], "cpu": []}
before = 0
for n in range(passes):
    f.evict(); torch.cuda.synchronize()
    c = os.times(); b = time.perf_counter()
    s.prefetch(list(range(L)) if n % 2 else list(range(L))[::-1])
    for layer in s: pass
    torch.cuda.synchronize()
    took = time.perf_counter() - b; d = os.times()
    drive = sum(one["drive_bytes"] for one in s.statistics()["layers"])
    found["stream"].append(round((drive - before) / took / 1e9, 3))
    found["cpu"].append(round((d.user + d.system - c.user - c.system) / ((drive - before) / 1e9), 3))
    before = drive
    f.evict()
    b = time.perf_counter(); assert f.read_into(target) == N
    found["engine"].append(round(N / (time.perf_counter() - b) / 1e9, 3))
print(name, found, flush=True)
with open(out, "a") as o: o.write(json.dumps({"version": name, **found}) + "\n")
