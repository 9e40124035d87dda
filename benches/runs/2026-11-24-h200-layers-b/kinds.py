"""Raw reads and reads of the engine in turn: does memory that is used again and again make a drive faster?"""
import json, sys, os, time, mmap, threading, ctypes
from statistics import median
import torch, forebay
path, out, ROUNDS, N = sys.argv[1], sys.argv[2], int(sys.argv[3]), 2_400_000_000 // 4096 * 4096
if not os.path.exists(path):
    with open(path, "wb") as f:
        block = os.urandom(64 << 20)
        for at in range(0, N, len(block)):
            f.write(block[: N - at])
        os.fsync(f.fileno())
def raw(threads, piece, span):
    """Threads that read pieces in order, each into `span` bytes of its own, one place after another."""
    todo = list(range(0, N, piece))[::-1]
    rooms = [mmap.mmap(-1, (span + (2 << 20) - 1) // (2 << 20) * (2 << 20)) for _ in range(threads)]
    for r in rooms:
        r.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(r), 4096): r[at] = 1
    def work(room):
        fd, view, at = os.open(path, os.O_RDONLY | os.O_DIRECT), memoryview(room), 0
        try:
            while True:
                try: start = todo.pop()
                except IndexError: break
                os.preadv(fd, [view[at:at + min(piece, N - start)]], start)
                at = (at + piece) % span
        finally:
            view.release(); os.close(fd)
    ts = [threading.Thread(target=work, args=(r,)) for r in rooms]
    b = time.perf_counter()
    for t in ts: t.start()
    for t in ts: t.join()
    return time.perf_counter() - b
target = torch.empty(N, dtype=torch.uint8, device="cuda")
def engine(**options):
    e = forebay.Engine(remember=False, **options)
    f = e.open(path)
    def go():
        f.evict()
        b = time.perf_counter()
        assert f.read_into(target) == N
        return time.perf_counter() - b
    return go
M = 1 << 20
ways = {
    "raw 8x1M hot": lambda: raw(8, M, M), "raw 8x1M over 32M each": lambda: raw(8, M, 32 * M),
    "raw 16x4M hot": lambda: raw(16, 4 * M, 4 * M), "raw 16x1M hot": lambda: raw(16, M, M),
    "engine": engine(), "engine depth 8": engine(depth=8),
    "engine depth 8 arena 32M": engine(depth=8, arena_size=32 * M),
    "engine depth 8 slot 1M arena 16M": engine(depth=8, slot_size=M, segment_size=M, arena_size=16 * M),
    "engine depth 8 pread": engine(depth=8, ring="pread"),
}
found = {n: [] for n in ways}
for r in range(-1, ROUNDS):
    for n in (list(ways) if r % 2 else list(ways)[::-1]):
        s = ways[n]()
        if r >= 0: found[n].append(s)
for n, v in found.items(): print(f"{n:36s} {N / median(v) / 1e9:.2f} GB/s  ", [round(N / x / 1e9, 2) for x in v])
json.dump({"bytes": N, "seconds": found}, open(out, "w"))
