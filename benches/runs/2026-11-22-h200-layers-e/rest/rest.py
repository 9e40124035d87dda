"""Passes from rest through slots: when each layer's last copy is queued; a log of the last pass."""
import ctypes, json, os, resource, statistics, sys, threading, time
import forebay, forebay._forebay as raw
from forebay.stream import LayerStream
path, layers, nbytes, name, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4], sys.argv[5]
lib = ctypes.CDLL(raw.__file__); cuda = ctypes.CDLL("libcuda.so.1")
burn = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "libburn.so")).burn
burn.argtypes = [ctypes.c_int, ctypes.c_size_t, ctypes.c_double]
rest_s, threads = float(os.environ.get("REST_MS", 150)) / 1e3, int(os.environ.get("WARM", 0))
touch = int(os.environ.get('TOUCH', 0))
size = int(os.environ.get("WARM_KB", 16384)) << 10
if threads: burn(threads, size, 0.05)
file = forebay.open(path)
rows, cpu = [], 0
with LayerStream([[(file, n * nbytes, nbytes)] for n in range(layers)], "cuda:0", gpu_budget=3 * nbytes,
                 host_budget=0, mapped_budget=0, stream=0, order="told") as s:
    for number in range(16):
        if rest_s: time.sleep(rest_s)
        if threads: burn(threads, size, 0.03)
        if touch: lib.fb_touch(ctypes.c_uint64(14), ctypes.c_uint64(touch))
        last = number == 15
        if last: lib.fb_on(1)
        r0 = resource.getrusage(resource.RUSAGE_SELF)
        t = time.perf_counter()
        s.prefetch(list(range(layers)))
        at = []
        for _ in s:
            at.append(time.perf_counter() - t)
        cuda.cuCtxSynchronize()
        whole = time.perf_counter() - t
        r1 = resource.getrusage(resource.RUSAGE_SELF)
        if last:
            lib.fb_on(0); lib.fb_dump(f"{out}.{name}.log".encode()); open(f"{out}.{name}.t0", "w").write(str(int(t * 1e9)))
        elif number >= 4:
            rows.append((at, whole)); cpu += r1.ru_utime + r1.ru_stime - r0.ru_utime - r0.ru_stime
med = [statistics.median(r[0][n] for r in rows) * 1e3 for n in range(layers)]
steps = [b - a for a, b in zip([0] + med, med)]
whole = statistics.median(r[1] for r in rows) * 1e3
print(f"{name:16} pass {whole:7.2f} ms ({min(r[1] for r in rows)*1e3:.1f} to {max(r[1] for r in rows)*1e3:.1f}), {layers*nbytes/whole/1e6:.2f} GB/s; first {steps[0]:.2f}, then {statistics.median(steps[1:-1]):.2f} (mean {sum(steps[1:])/(layers-1):.2f}), first five {[round(x,2) for x in steps[:5]]} rest {whole-med[-1]:.2f} cpu {cpu/len(rows)/(layers*nbytes/1e9):.3f}", flush=True)
with open(out, "a") as f: f.write(json.dumps({"name": name, "rows": rows, "env": {k: v for k, v in os.environ.items() if k.startswith(("FB_", "FOREBAY", "REST", "WARM"))}}) + "\n")
