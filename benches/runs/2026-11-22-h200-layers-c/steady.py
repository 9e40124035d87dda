"""Steady rate of layers through slots, without compute: one variant a process."""
import json, os, sys, time, statistics
import forebay
from forebay.stream import LayerStream
path, layers, nbytes, name, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
pinned = name == "link"
file = forebay.open(path)
import resource
with LayerStream([[(file, n * nbytes, nbytes)] for n in range(layers)], "cuda:0", gpu_budget=3 * nbytes,
                 host_budget=0 if not pinned else layers * (nbytes + 65536), mapped_budget=0, stream=0,
                 order="told") as s:
    def one():
        s.prefetch(list(range(layers)))
        for _ in s: pass
    walls = []
    def pas(n):
        # told ahead, so that one pass goes over into the next
        s.prefetch(list(range(layers)) * n)
        c = 0
        t = time.perf_counter()
        for _ in s:
            c += 1
            if c == layers:
                now = time.perf_counter(); walls.append(now - t); t = now; c = 0
    pas(3)
    walls.clear()
    r0 = resource.getrusage(resource.RUSAGE_SELF)
    pas(8)
    r1 = resource.getrusage(resource.RUSAGE_SELF)
    cpu = r1.ru_utime + r1.ru_stime - r0.ru_utime - r0.ru_stime
    st = s.statistics()["passes"][-1]
w = sorted(walls)[1:-1]
m = statistics.median(w)
print(f"{name:28} {nbytes*layers/m/1e9:6.2f} GB/s  min {nbytes*layers/max(w)/1e9:6.2f} max {nbytes*layers/min(w)/1e9:6.2f}  cpu {cpu/(8*nbytes*layers/1e9):.3f} s/GB  pinned {st['pinned_bytes']/1e9:.2f} file {st['file_bytes']/1e9:.2f}", flush=True)
with open(out, "a") as f: f.write(json.dumps({"name": name, "walls": walls, "cpu": cpu, "env": {k: v for k, v in os.environ.items() if k.startswith(("FB_", "FOREBAY"))}}) + "\n")
