"""What nobody can be faster than: the way to the device, and the drive."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from pathlib import Path
from typing import Any

from ..model import Model
from .side import Loaded, Side, is_there, torch

_LINK_MOST = 1 << 30
"""Copies of more than some 256 MiB are no faster (archived runs on an H200)."""

_READERS, _READ = 8, 8 << 20


class Link(Side):
    """One copy of pinned memory to the GPU; to the host, of memory that is there already."""

    name = "link"
    needs_torch = False

    def __init__(self) -> None:
        super().__init__("one copy", states=("resident",))
        self._source: Any = None
        self._target: Any = None

    def available(self, device: str) -> str | None:
        if device != "cpu" and not is_there("torch"):
            return "`torch` is not installed"
        return None

    def start(self, model: Model, device: str) -> None:
        length = min(model.nbytes, _LINK_MOST)
        if device == "cpu":
            self._source = memoryview(bytearray(b"\1") * length)
            self._target = memoryview(bytearray(b"\2") * length)
            return
        self._source = torch().full((length,), 1, dtype=torch().uint8).pin_memory()
        self._target = torch().empty(length, dtype=torch().uint8, device=device)

    def load(self, model: Model, path: Path, device: str) -> Loaded:
        if device == "cpu":
            self._target[:] = self._source
        else:
            self._target.copy_(self._source, non_blocking=True)
        return Loaded({}, len(self._source))


class Drive(Side):
    """Reads past the page cache by several threads, to host memory that is used again."""

    name = "drive"
    needs_torch = False

    def __init__(self) -> None:
        super().__init__(f"{_READERS} threads x {_READ >> 20} MiB, direct", states=("cold",))

    def load(self, model: Model, path: Path, device: str) -> Loaded:
        try:
            file = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            raise RuntimeError("the file system has no reads past the page cache") from error
        try:
            end = os.fstat(file).st_size
            parts = iter(range(0, end, _READ))
            lock = threading.Lock()
            errors: list[OSError] = []

            def read() -> None:
                with mmap.mmap(-1, _READ) as memory:  # aligned, as such reads have to be
                    while True:
                        with lock:
                            begin = next(parts, None)
                        if begin is None:
                            return
                        try:
                            got = os.preadv(file, [memory], begin)
                        except OSError as error:
                            errors.append(error)
                            return
                        if got < min(_READ, end - begin):
                            errors.append(OSError(errno.EIO, "short read", os.fspath(path)))
                            return

            threads = [threading.Thread(target=read) for _ in range(_READERS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if errors:
                raise errors[0]
            return Loaded({}, end)
        finally:
            os.close(file)
