"""Writes a file by AIO with O_DIRECT, and beside it, meanwhile, through the page cache.

usage: two-writers.py FILE, on a drive that is slow enough: a loop device whose writes are throttled to
1 MB/s (`blkio.throttle.write_bps_device`). Reads of 16 KiB in between have the kernel read ahead
into ever larger folios; the ranges that are written do not share a page.
"""

import ctypes
import mmap
import os
import struct
import sys
import time

SUBMIT, GET_EVENTS, SETUP = 209, 208, 206  # of x86-64
BODY, ALL = (1 << 20) - 4096, 4 << 20


class Iocb(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("rw", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event", ctypes.c_uint32),
    ]


libc = ctypes.CDLL(None, use_errno=True)
context = ctypes.c_ulong(0)
assert libc.syscall(SETUP, 8, ctypes.byref(context)) == 0
cached = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(cached, b"\0" * ALL)
os.fsync(cached)
os.posix_fadvise(cached, 0, 0, os.POSIX_FADV_DONTNEED)
direct = os.open(sys.argv[1], os.O_RDWR | os.O_DIRECT)
memory = mmap.mmap(-1, 1 << 20)
memory.write(b"n" * (1 << 20))
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
iocb = Iocb(opcode=1, fd=direct, buffer=address, bytes=BODY, offset=0)
iocbs = (ctypes.POINTER(Iocb) * 1)(ctypes.pointer(iocb))
begun = time.monotonic()
assert libc.syscall(SUBMIT, context, 1, iocbs) == 1
print(f"submitted in {time.monotonic() - begun:.3f} s")
for at in range(0, ALL, 16384):
    os.pread(cached, 16384, at)
os.pwrite(cached, b"x" * 100, BODY + 96)
event = ctypes.create_string_buffer(64)
assert libc.syscall(GET_EVENTS, context, 1, 1, event, None) == 1
print("written around the page cache:", struct.unpack("QQqq", event.raw[:32])[2], "of", BODY)
print("old bytes of these in the page cache:", os.pread(cached, BODY, 0).count(b"\0"))
try:
    os.fsync(cached)
    print("sync: done")
except OSError as error:
    print("sync:", error)
