"""Raw reads, the engine and streams in turn on one drive: which memory the bytes go through."""
import json, sys, os, time, mmap, threading
from statistics import median
import torch, forebay
from forebay.stream import LayerStream
path, out, ROUNDS, LIMIT = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
L, EACH = 12, 200_000_000 // 4096 * 4096
N = L * EACH
if not os.path.exists(path):
    with open(path, "wb") as f:
        block = os.urandom(64 << 20)
        for at in range(0, N, len(block)):
            f.write(block[: N - at])
        os.fsync(f.fileno())
M = 1 << 20
def rooms_of(threads, span):
    rooms = [mmap.mmap(-1, (span + 2 * M - 1) // (2 * M) * 2 * M) for _ in range(threads)]
    for r in rooms:
        r.madvise(mmap.MADV_HUGEPAGE)
        for at in range(0, len(r), 4096): r[at] = 1
    return rooms
def raw(threads, piece, span, keep=True):
    kept = rooms_of(threads, span) if keep else None
    def go():
        rooms = kept or rooms_of(threads, span)
        todo = list(range(0, N, piece))[::-1]
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
        return N / (time.perf_counter() - b) / 1e9
    return go
target = torch.empty(N, dtype=torch.uint8, device="cuda")
def engine(**options):
    e = forebay.Engine(remember=False, **options)
    f = e.open(path)
    def go():
        f.evict()
        b = time.perf_counter()
        assert f.read_into(target) == N
        return N / (time.perf_counter() - b) / 1e9
    return go
def stream(**options):
    e = forebay.Engine(remember=False, **options)
    f = e.open(path)
    s = LayerStream([[(f, n * EACH, EACH)] for n in range(L)], "cuda", order="told", stream=0,
                    gpu_budget=3 * EACH, mapped_budget=0, engine=e)
    turn = [0]
    def go():
        f.evict()
        turn[0] += 1
        before = sum(one["drive_bytes"] for one in s.statistics()["layers"])
        torch.cuda.synchronize()
        b = time.perf_counter()
        s.prefetch([n for n in range(L)][:: 1 if turn[0] % 2 else -1][:])
        for layer in s: pass
        torch.cuda.synchronize()
        took = time.perf_counter() - b
        return (sum(one["drive_bytes"] for one in s.statistics()["layers"]) - before) / took / 1e9
    return go
ways = {
    "raw 8x1M kept": raw(8, M, M), "raw 8x1M new": raw(8, M, M, False), "raw 16x1M kept": raw(16, M, M),
    "raw 8x1M over 8M each": raw(8, M, 8 * M), "raw 16x4M kept": raw(16, 4 * M, 4 * M),
    "engine": engine(), "engine depth 8": engine(depth=8),
    "engine depth 8 slot 1M arena 16M": engine(depth=8, slot_size=M, segment_size=M, arena_size=16 * M),
    "stream": stream(), "stream depth 8": stream(depth=8),
}
for slot in (8, 4, 2):
    for depth in (None, 8):
        ways[f"stream blocks of {slot // 2}M{' depth 8' if depth else ''}"] = stream(
            slot_size=slot * M, segment_size=min(M, slot * M // 2), **({"depth": depth} if depth else {}))
found = {n: [] for n in ways}
began = time.time()
import random
random.seed(1)
for r in range(-1, ROUNDS):
    order = list(ways); random.shuffle(order)
    for n in order:
        pair = [round(ways[n](), 3), round(ways[n](), 3)]  # behind others, and behind itself
        if r >= 0: found[n].append(pair)
    if time.time() - began > LIMIT: break
for n, v in found.items():
    print(f"{n:36s} behind others {median(x[0] for x in v):.2f}  behind itself {median(x[1] for x in v):.2f} GB/s", v, flush=True)
json.dump({"bytes": N, "GB_per_s": found}, open(out, "w"))
