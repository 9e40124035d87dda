"""Layers to two GPUs: a group that reads them once, beside two streams that read by themselves, and
one stream alone. Each way a process of its own; turn by turn by the caller."""
import json, os, resource, statistics, sys, threading, time
import torch
import forebay
from forebay.stream import LayerStream
way, source, path, layers, nbytes, passes, out = sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:7]), sys.argv[7]
gpus = ["cuda:0"] if way == "one" else ["cuda:0", "cuda:1"]
for gpu in gpus:
    torch.zeros(1, device=gpu)
def io():
    with open("/proc/self/io") as f:
        found = dict(line.split(": ") for line in f)
    return int(found["rchar"]), int(found["read_bytes"])
def cold():
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
def warm():
    with open(path, "rb") as f:
        while f.read(64 << 20): pass
(cold if source == "drive" else warm)()
file = forebay.open(path)
described = [[(file, n * nbytes, nbytes)] for n in range(layers)]
options = dict(gpu_budget=3 * nbytes, host_budget=0,
               mapped_budget=layers * nbytes if source == "mapped" else 0)
if way == "group":
    streams = LayerStream.group(described, gpus, **options)
else:
    streams = [LayerStream(described, gpu, **options) for gpu in gpus]
sums = [[None] * layers for _ in gpus]
walls = [[] for _ in gpus]
barrier = threading.Barrier(len(gpus))
usage = []
def run(number):
    gpu, stream = gpus[number], streams[number]
    torch.cuda.set_device(gpu)
    for count in range(passes + 1):
        barrier.wait()
        if number == 0:
            usage.append((resource.getrusage(resource.RUSAGE_SELF), io()))
        t = time.perf_counter()
        for layer in stream:
            if count == 0:
                data = torch.from_dlpack(layer.memory).view(torch.int64)
                sums[number][layer.index] = data.sum()
        torch.cuda.synchronize()
        walls[number].append(time.perf_counter() - t)
    barrier.wait()
    if number == 0:
        usage.append((resource.getrusage(resource.RUSAGE_SELF), io()))
threads = [threading.Thread(target=run, args=(n,)) for n in range(len(gpus))]
[t.start() for t in threads]; [t.join() for t in threads]
sums = [[int(value) for value in row] for row in sums]
assert all(row == sums[0] for row in sums), "the GPUs have different bytes"
skip = 3 if source == "mapped" else 1
(u0, i0), (u1, i1) = usage[skip], usage[-1]
count = passes + 1 - skip
moved = count * layers * nbytes
cpu = u1.ru_utime + u1.ru_stime - u0.ru_utime - u0.ru_stime
rates = [layers * nbytes / statistics.median(row[skip:]) / 1e9 for row in walls]
print(f"{source:6} {way:5} GB/s each {' '.join(f'{r:6.2f}' for r in rates)}  cpu {cpu / (moved * len(gpus) / 1e9):.3f} s/GB  read {(i1[0] - i0[0]) / moved:.2f} by calls, {(i1[1] - i0[1]) / moved:.2f} from drives of a pass; brought {[s.statistics()['passes'][-1]['brought'] for s in streams]} sum {hex(sums[0][0] & (2**64-1))}", flush=True)
with open(out, "a") as f:
    f.write(json.dumps(dict(way=way, source=source, walls=walls, cpu=cpu, io=[i0, i1], layers=layers, nbytes=nbytes)) + "\n")
for stream in streams:
    stream.close()
