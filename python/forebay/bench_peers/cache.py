"""Brings a file into the page cache, or out of it, and says how much of it is there."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

_PAGE = mmap.PAGESIZE
_READ = 16 << 20


def bring_in(path: Path) -> None:
    """Reads all of a file."""
    with open(path, "rb", buffering=0) as file:
        memory = bytearray(_READ)
        while file.readinto(memory):
            pass


def drop(path: Path) -> None:
    """Drops a file's pages, after they have been written."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def share(path: Path) -> float:
    """How much of a file is in the page cache, from 0 to 1."""
    size = path.stat().st_size
    if size == 0:
        return 1.0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    pages = -(-size // _PAGE)
    there = ctypes.create_string_buffer(pages)
    # A private mapping that may be written, since ctypes gives the address of such memory only.
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        failed = libc.mincore(ctypes.addressof(first), size, there)
        del first  # or the mapping could not be closed
    if failed:
        raise OSError(ctypes.get_errno(), "cannot see what is in the page cache", os.fspath(path))
    return sum(byte & 1 for byte in there.raw[:pages]) / pages


def make(path: Path, state: str) -> float:
    """Makes a file resident or cold, and returns how much of it is in the page cache then."""
    if state == "cold":
        drop(path)
    elif share(path) < 1:
        bring_in(path)
    return share(path)
