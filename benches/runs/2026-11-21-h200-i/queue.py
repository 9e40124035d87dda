"""How many copies the queue of a stream that waits takes before a call blocks."""

import ctypes as C
import threading
import time

cu = C.CDLL("libcuda.so.1")
device, context, host, gpu = C.c_int(), C.c_void_p(), C.c_void_p(), C.c_uint64()
cu.cuInit(0)
cu.cuDeviceGet(C.byref(device), 0)
cu.cuDevicePrimaryCtxRetain(C.byref(context), device)
cu.cuCtxSetCurrent(context)
cu.cuMemHostAlloc(C.byref(host), C.c_size_t(8 << 20), 2)
cu.cuMemAlloc_v2(C.byref(gpu), C.c_size_t(8 << 20))
flag, base = C.cast(host.value, C.POINTER(C.c_uint32)), host.value
address, status = C.c_void_p(), C.c_int()
cu.cuGetProcAddress_v2(
    b"cuMemcpyBatchAsync", C.byref(address), 12080, C.c_ulonglong(0), C.byref(status)
)
batch = C.CFUNCTYPE(
    C.c_int, C.c_void_p, C.c_void_p, C.c_void_p, C.c_size_t, C.c_void_p, C.c_void_p, C.c_size_t,
    C.c_void_p, C.c_void_p,
)(address.value)  # fmt: skip


class Attributes(C.Structure):
    _fields_ = [("order", C.c_int), ("s", C.c_int * 2), ("d", C.c_int * 2), ("flags", C.c_uint)]


def run(name, make):
    stream = C.c_void_p()
    cu.cuStreamCreate(C.byref(stream), 1)
    flag[0] = 0
    cu.cuStreamWaitValue32_v2(stream, C.c_uint64(base), C.c_uint32(1), C.c_uint(0))
    call, count, over = make(stream), [0], [False]

    def go():
        cu.cuCtxSetCurrent(context)
        for _ in range(4000):
            assert call() == 0
            count[0] += 1
        over[0] = True

    thread = threading.Thread(target=go)
    thread.start()
    last = -1
    while not over[0] and count[0] != last:
        last = count[0]
        time.sleep(1)
    print(name, "entries before it blocks:", count[0], "(all)" if over[0] else "", flush=True)
    flag[0] = 1
    thread.join(20)
    cu.cuStreamSynchronize(stream)


def one(stream):
    return lambda: cu.cuMemcpyHtoDAsync_v2(
        C.c_uint64(gpu.value), C.c_void_p(base + 4096), C.c_size_t(65536), stream
    )


def many(n):
    def make(stream):
        targets = (C.c_uint64 * n)(*[gpu.value + i * 8192 for i in range(n)])
        sources = (C.c_uint64 * n)(*[base + 4096 + i * 8192 for i in range(n)])
        sizes = (C.c_size_t * n)(*[4096] * n)
        how, index, fail = Attributes(1), (C.c_size_t * 1)(0), C.c_size_t(0)
        return lambda: batch(
            targets, sources, sizes, n, C.byref(how), index, 1, C.byref(fail), stream
        )

    return make


run("copy", one)
for n in (1, 8, 64, 512):
    run(f"batch of {n}", many(n))
