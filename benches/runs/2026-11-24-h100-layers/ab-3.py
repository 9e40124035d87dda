"""Passes of a stream from the drive in turn with plain reads, some of which are copied to the GPU."""
import ctypes, json, mmap, os, sys, threading, time
import torch, forebay
from forebay.stream import LayerStream
path, out, name, rounds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
L, EACH, M = 12, 150_000_000 // 4096 * 4096, 1 << 20
N = L * EACH
if not os.path.exists(path):
    with open(path, "wb") as f:
        block = os.urandom(64 << 20)
        for at in range(0, N, len(block)): f.write(block[: N - at])
        os.fsync(f.fileno())
torch.cuda.init()
target = torch.empty(N, dtype=torch.uint8, device="cuda")
def room():
    memory = mmap.mmap(-1, 4 * M); memory.madvise(mmap.MADV_HUGEPAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory)); at = -base % (2 * M)
    view = memoryview(memory)[at:at + M]
    for n in range(0, M, 4096): view[n] = 1
    assert int(torch.cuda.cudart().cudaHostRegister(base + at, M, 0)) == 0
    return view, torch.frombuffer(view, dtype=torch.uint8)
rooms = [room() for _ in range(32)]
def raw(threads, copies, M=M):
    streams = [torch.cuda.Stream() for _ in range(threads)]
    def go():
        todo = list(range(0, N, M))[::-1]
        def work(n):
            view, tensor = rooms[n]; fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            with torch.cuda.stream(streams[n]):
                while True:
                    try: start = todo.pop()
                    except IndexError: break
                    size = min(M, N - start)
                    assert os.preadv(fd, [view[:size]], start) == size
                    if copies:
                        target[start:start + size].copy_(tensor[:size], non_blocking=True)
                        streams[n].synchronize()
            os.close(fd)
        ts = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        b = time.perf_counter()
        for t in ts: t.start()
        for t in ts: t.join()
        return N / (time.perf_counter() - b) / 1e9
    return go
def engine():
    e = forebay.Engine(); f = e.open(path)
    def go():
        f.evict(); b = time.perf_counter(); assert f.read_into(target) == N
        return N / (time.perf_counter() - b) / 1e9
    return go
def stream(**options):
    e = forebay.Engine(**options); f = e.open(path)
    s = LayerStream([[(f, n * EACH, EACH)] for n in range(L)], "cuda", order="told", stream=0,
                    gpu_budget=3 * EACH, mapped_budget=0, engine=e)
    turn = [0]
    def go():
        f.evict(); turn[0] += 1
        torch.cuda.synchronize()
        before = sum(one["drive_bytes"] for one in s.statistics()["layers"])
        b = time.perf_counter()
        s.prefetch(list(range(L))[:: 1 if turn[0] % 2 else -1])
        for layer in s: pass
        torch.cuda.synchronize()
        took = time.perf_counter() - b
        return (sum(one["drive_bytes"] for one in s.statistics()["layers"]) - before) / took / 1e9
    return go
from forebay.stream_bench.raw import Raw
plain = Raw.__new__(Raw)
plain._path, plain._nbytes, plain._flags, plain._rooms = path, EACH, os.O_RDONLY | os.O_DIRECT, {}
def bench(threads, piece): return lambda: N / plain.read(range(L), (threads, piece)) / 1e9
def engine(**options):
    e = forebay.Engine(**options); f = e.open(path)
    def go():
        f.evict(); b = time.perf_counter(); assert f.read_into(target) == N
        return N / (time.perf_counter() - b) / 1e9
    return go
K = M // 4
ways = {"raw 4": bench(4, M), "raw 8": bench(8, M), "stream": stream(), "engine": engine()}
if name == "new":
    ways |= {"raw 8 of 512K": bench(8, 2 * K), "raw 8 of 256K": bench(8, K)}
    for depth, size in ((6, 2), (8, 2), (8, 1), (12, 1)):
        ways[f"stream {depth} of {size * 256}K"] = stream(depth=depth, segment_size=size * K, remember=False)
    ways["engine 6 of 512K"] = engine(depth=6, segment_size=2 * K, remember=False)
    ways["engine 8 of 256K"] = engine(depth=8, segment_size=K, remember=False)
found = {n: [] for n in ways}
for r in range(rounds):
    order = list(ways)[r % 2 * 0:]
    if r % 2: order.reverse()
    for n in order:
        found[n].append(round(ways[n](), 3))
from statistics import median

for n, v in found.items(): print(f"{n:26s} {median(v):.3f}  to raw 4 {median(a / b for a, b in zip(found['raw 4'], v)):.3f}", v)

with open(out, "a") as o: o.write(json.dumps({"version": name, "bytes": N, "GB_per_s": found}) + "\n")

ways.clear()
import gc; gc.collect()
os.system("find $XDG_CACHE_HOME -type f | xargs head -c 600; echo")
