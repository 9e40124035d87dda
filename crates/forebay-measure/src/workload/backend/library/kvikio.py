"""Reads files with KvikIO: one order on each line of stdin, one answer on each line of stdout."""
import sys

# No package is imported from the current folder.
sys.path[:] = [part for part in sys.path if part]

import ctypes
import json
import mmap
import os
import resource

answers = os.fdopen(os.dup(1), "w")
# Libraries may print what they like.
os.dup2(2, 1)


def say(kind, **values):
    answers.write(json.dumps({"answer": kind, **values}) + "\n")
    answers.flush()


class Gpu:
    """Memory of the one GPU that this process sees, by the driver itself."""

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", ctypes.c_uint(0))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(0))
        self.call("cuCtxSetCurrent", context)
        self.address = None

    def allocate(self, size):
        if self.address:
            self.call("cuMemFree_v2", ctypes.c_uint64(self.address))
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        self.address = address.value

    def call(self, name, *arguments):
        code = getattr(self.driver, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} failed with {code}")

    def fill(self, byte, size):
        pointer, count = ctypes.c_uint64(self.address), ctypes.c_size_t(size)
        self.call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(byte), count)
        self.call("cuCtxSynchronize")

    def download(self, at, window, size):
        pointer = (ctypes.c_ubyte * size).from_buffer(window)
        source = ctypes.c_uint64(self.address + at)
        self.call("cuMemcpyDtoH_v2", pointer, source, ctypes.c_size_t(size))


class Part:
    """A part of the GPU's memory, as other packages want it to be described."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (size,),
            "strides": None,
            "typestr": "|u1",
            "version": 3,
        }


class Work:
    def __init__(self):
        self.file = None

    def start(self, gpu):
        import kvikio

        self.kvikio = kvikio
        self.gpu = Gpu() if gpu else None
        say("started", version=str(kvikio.__version__))

    def allocate(self, window, bytes, len):
        handle = os.open(window, os.O_RDWR)
        self.window = mmap.mmap(handle, bytes)
        os.close(handle)
        self.len = len
        if self.gpu:
            self.gpu.allocate(len)
        say("done")

    def open(self, path, write, direct):
        self.close_file()
        self.file = self.kvikio.CuFile(os.fsdecode(bytes.fromhex(path)), "r")
        say("opened", direct=False)

    def close_file(self):
        if self.file:
            self.file.close()
        self.file = None

    def close(self):
        self.close_file()
        say("done")

    def fill(self, byte):
        self.gpu.fill(byte, self.len)
        say("done")

    def download(self, at, len):
        self.gpu.download(at, self.window, len)
        say("done")

    def move(self, write, offset, at, len, threads, request):
        def spent():
            usage = resource.getrusage(resource.RUSAGE_SELF)
            return usage.ru_utime + usage.ru_stime

        if self.gpu:
            target = Part(self.gpu.address + at, len)
        else:
            target = memoryview(self.window)[at : at + len]
        cpu = spent()
        moved = self.file.pread(target, len, offset).get()
        say("moved", bytes=moved, cpu_seconds=spent() - cpu)


work = Work()
for line in sys.stdin:
    order = json.loads(line)
    name = order.pop("order")
    try:
        getattr(work, name)(**order)
    except BaseException as error:
        say("failed", reason=f"{type(error).__name__}: {error}", hint=None)
