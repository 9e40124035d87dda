"""Plain reads with O_DIRECT: the rate of a drive, without copies to a GPU."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

#: Threads, and bytes of each read.
Kind = tuple[int, int]

KINDS: list[Kind] = [(threads, mib << 20) for threads in (4, 8, 16, 32, 64) for mib in (1, 4)]

#: How many of the fastest kinds are tried again, and how often.
_LIKELY, _AGAIN = 3, 2

# Reads into ordinary pages can be slower than the drive (docs/internals.md#huge-pages).
_HUGE = 2 << 20


class Raw:
    """Reads of layers by the kind that is the fastest on this drive."""

    def __init__(self, path: Path, nbytes: int, layers: Sequence[int]) -> None:
        self._path, self._nbytes = path, nbytes
        self._flags = os.O_RDONLY | _direct(path)
        # Kept between reads: a read to memory that was just used can be faster. So new memory would
        # be another limit each time (docs/internals.md#layers).
        self._buffers: dict[Kind, list[memoryview]] = {}
        self.tried: dict[Kind, list[float]] = {}
        for kind in KINDS:
            self.tried[kind] = [self.read(layers, kind)]
            self._buffers.clear()  # all kinds together would take half a gigabyte
        likely = sorted(KINDS, key=lambda kind: self.tried[kind][0])[:_LIKELY]
        for _ in range(_AGAIN):
            for kind in likely:
                self.tried[kind].append(self.read(layers, kind))
        self.kind = min(likely, key=lambda kind: median(self.tried[kind]))
        self._buffers = {self.kind: self._buffers[self.kind]}

    @property
    def is_direct(self) -> bool:
        """Whether it uses O_DIRECT, which not every file system supports."""
        return bool(self._flags & os.O_DIRECT)

    def described(self) -> dict[str, Any]:
        """The chosen kind, and the times of all kinds that were tried."""
        tried = [
            {"threads": threads, "request_bytes": nbytes, "passes_s": passes_s}
            for (threads, nbytes), passes_s in self.tried.items()
        ]
        threads, nbytes = self.kind
        return {
            "threads": threads,
            "request_bytes": nbytes,
            "past_page_cache": self.is_direct,
            "tried": tried,
        }

    def read(self, layers: Sequence[int], kind: Kind | None = None) -> float:
        """Reads whole layers; returns the seconds."""
        kind = kind or self.kind
        threads, piece = kind
        starts = (layer * self._nbytes for layer in layers)
        todo = [
            (start + at, min(piece, self._nbytes - at))
            for start in starts
            for at in range(0, self._nbytes, piece)
        ]
        todo.reverse()
        failed: list[Exception] = []
        if kind not in self._buffers:
            self._buffers[kind] = [_buffer(piece) for _ in range(threads)]
        workers = [
            threading.Thread(target=self._work, args=(todo, buffer, failed))
            for buffer in self._buffers[kind]
        ]
        began = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        took = time.perf_counter() - began
        if failed:
            raise failed[0]
        return took

    def _work(
        self, todo: list[tuple[int, int]], buffer: memoryview, failed: list[Exception]
    ) -> None:
        try:
            with _opened(self._path, self._flags) as file:
                while todo and not failed:
                    try:
                        offset, size = todo.pop()
                    except IndexError:  # another thread was faster
                        return
                    self._fill(file, buffer[:size], offset)
        except Exception as error:
            failed.append(error)

    def _fill(self, file: int, buffer: memoryview, offset: int) -> None:
        done = 0
        while done < len(buffer):
            got = os.preadv(file, [buffer[done:]], offset + done)
            if not got:
                place = f"`{self._path}` at {offset + done}"
                raise OSError(f"cannot read {place}: it ends there")
            done += got


def _buffer(size: int) -> memoryview:
    """Populated memory of `size` bytes, on huge pages if the kernel has them."""
    memory = mmap.mmap(-1, size + _HUGE)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % _HUGE
    buffer = memoryview(memory)[start : start + size]
    buffer[:: mmap.PAGESIZE] = bytes(len(range(0, size, mmap.PAGESIZE)))
    return buffer


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


def _direct(path: Path) -> int:
    """O_DIRECT if the file can be opened and read with it, else 0."""
    try:
        with _opened(path, os.O_RDONLY | os.O_DIRECT) as file:
            with mmap.mmap(-1, mmap.PAGESIZE) as memory:
                os.preadv(file, [memory], 0)
    except OSError:
        return 0
    return os.O_DIRECT
