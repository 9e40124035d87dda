"""How long a pass of compute takes, the longer the GPU has been busy."""
import json, subprocess, sys, threading, time
import torch
from forebay.stream_bench.compute import Compute
from forebay.stream_bench.shape import Shape
out = sys.argv[1]
compute = Compute(Shape(), 4096, "cuda:0", backward=False)
watch = subprocess.Popen(["nvidia-smi", "-i", "0", "-lms", "20", "--format=csv,noheader,nounits", "--query-gpu=clocks.sm,power.draw.instant,clocks_event_reasons.active,temperature.gpu"], stdout=subprocess.PIPE, text=True)
seen = []
def read():
    for line in watch.stdout:
        seen.append((time.perf_counter(), line.strip()))
threading.Thread(target=read, daemon=True).start()
time.sleep(1)
found = []
for rest in (0.05, 0.2, 1.0, 0.2):
    time.sleep(rest)
    began = time.perf_counter()
    passes = []
    while time.perf_counter() - began < 3:
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True, blocking=True)
        at = time.perf_counter()
        a.record(compute.stream)
        for _ in range(24):
            compute.run()
        b.record(compute.stream); b.synchronize()
        passes.append((round(at - began, 4), round(a.elapsed_time(b), 2)))
    found.append({"rest_s": rest, "began": began, "passes": passes})
watch.terminate()
json.dump({"found": found, "seen": seen}, open(out, "w"))
for f in found:
    clock = [s[1] for s in seen if f["began"] <= s[0] < f["began"] + 3]
    print(f["rest_s"], [p[1] for p in f["passes"]])
    print("   ", clock[:: max(1, len(clock) // 12)])
