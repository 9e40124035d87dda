import os, sys, time, threading, mmap, resource, json
path, size = sys.argv[1], int(sys.argv[2]) << 20
def evict():
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); os.close(fd)
def vm():
    keep = ("pgscan_direct","pgsteal_direct","pgscan_kswapd","allocstall_normal","pgfault","thp_fault_alloc","compact_stall")
    return {l.split()[0]: int(l.split()[1]) for l in open("/proc/vmstat") if l.split()[0] in keep}
def run(threads, chunk, own, how, parts=1):
    evict()
    shared = os.open(path, os.O_RDONLY | (os.O_DIRECT if how == "direct" else 0))
    if how == "random": os.posix_fadvise(shared, 0, 0, os.POSIX_FADV_RANDOM)
    if how == "seq": os.posix_fadvise(shared, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    n = size // chunk
    counters = [iter(range(p * n // parts, p * n // parts + n)) for p in range(parts)]
    locks = [threading.Lock() for _ in range(parts)]
    def work(i):
        fd = os.open(path, os.O_RDONLY) if own else shared
        buf = mmap.mmap(-1, chunk)
        p = i % parts
        while True:
            with locks[p]:
                k = next(counters[p], None)
            if k is None: break
            k %= n
            if how == "willneed": os.posix_fadvise(fd, k*chunk, chunk, os.POSIX_FADV_WILLNEED)
            done = 0
            while done < chunk:
                done += os.preadv(fd, [memoryview(buf)[done:]], k*chunk + done)
        if own: os.close(fd)
    r0 = resource.getrusage(resource.RUSAGE_SELF); v0 = vm(); t0 = time.monotonic()
    ts = [threading.Thread(target=work, args=(i,)) for i in range(threads * parts)]
    [t.start() for t in ts]; [t.join() for t in ts]
    dt = time.monotonic() - t0; r1 = resource.getrusage(resource.RUSAGE_SELF); v1 = vm()
    os.close(shared)
    print(json.dumps(dict(threads=threads, parts=parts, chunk=chunk >> 10, own=own, how=how, gbs=round(size/dt/1e9, 2),
        user=round((r1.ru_utime-r0.ru_utime)*1e9/size, 2), sys=round((r1.ru_stime-r0.ru_stime)*1e9/size, 2),
        vcsw=r1.ru_nvcsw-r0.ru_nvcsw, vm={k: v1[k]-v0[k] for k in v1 if v1[k] != v0[k]})), flush=True)
for rep in range(int(sys.argv[3])):
    for how in ("direct", "plain", "random", "willneed"):
        for threads, chunk in ((1, 4), (2, 4), (4, 4), (8, 4), (12, 1), (12, 4), (12, 16)):
            run(threads, chunk << 20, False, how)
    for threads, chunk in ((2, 4), (4, 4), (12, 4)): run(threads, chunk << 20, True, "plain")
    for threads, chunk in ((1, 4), (2, 4), (4, 4), (6, 4), (12, 4)):
        run(threads, chunk << 20, False, "plain", 2)
        run(threads, chunk << 20, False, "random", 2)
