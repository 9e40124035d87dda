"""Whole reads of a resident file to the GPU, one behind the other or from rest."""
import json, os, resource, statistics, sys, time
import torch, forebay
path, nbytes, name, out = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
file = forebay.open(path)
to = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
rows = {}
for rest in (0.0, 0.1):
    walls, cpu = [], 0.0
    for n in range(40 if not rest else 20):
        if rest: time.sleep(rest)
        torch.cuda.synchronize()
        r0 = resource.getrusage(resource.RUSAGE_SELF); t = time.perf_counter()
        file.read_into(to)
        walls.append(time.perf_counter() - t)
        r1 = resource.getrusage(resource.RUSAGE_SELF)
        cpu += r1.ru_utime + r1.ru_stime - r0.ru_utime - r0.ru_stime
    half = walls[len(walls) // 2:]
    rows[rest] = (walls, cpu / len(walls) / nbytes * 1e9)
    print(f"{name:16} rest {rest}: last half {nbytes/statistics.median(half)/1e9:.2f} GB/s ({nbytes/max(half)/1e9:.1f} to {nbytes/min(half)/1e9:.1f}), all {nbytes/statistics.median(walls)/1e9:.2f}, cpu {rows[rest][1]:.3f}", flush=True)
with open(out, "a") as f: f.write(json.dumps({"name": name, "rows": rows}) + "\n")
