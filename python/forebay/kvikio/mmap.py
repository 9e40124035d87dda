"""Files with the interface of `kvikio.Mmap`. They are read like other files: nothing is mapped."""

from __future__ import annotations

import os
from typing import Any

from .._errors import close, shown
from . import _memory
from ._errors import ClosedFile
from .cufile import CuFile, IOFuture


class Mmap:
    """A region of a file that can be read."""

    def __init__(
        self,
        file_path: os.PathLike[str] | str,
        flags: str = "r",
        initial_map_size: int | None = None,
        initial_map_offset: int = 0,
        mode: int = 0o644,
        map_flags: int | None = None,
    ) -> None:
        """Opens a region of a file for reading.

        Args:
            file_path: the file's path.
            flags: ``r`` or ``r+``; nothing is written either way.
            initial_map_size: the region's size in bytes; by default up to the end of the file.
            initial_map_offset: the region's offset in the file.
            mode: has no effect here.
            map_flags: has no effect here.

        Raises:
            IndexError: the region is beyond the end of the file.
            ValueError: the region is empty, or other flags.
        """
        if flags.replace("b", "") not in {"r", "r+"}:
            text = f"unknown flags `{shown(flags)}`: a map takes `r` or `r+`"
            raise ValueError(text)
        offset = _memory.count("initial_map_offset", initial_map_offset)
        size = None
        if initial_map_size is not None:
            size = _memory.count("initial_map_size", initial_map_size)
        self._file = CuFile(os.fspath(file_path), flags)
        try:
            self._offset, self._size = offset, _region(self._file.file.size, offset, size)
        except BaseException:
            self._file.close()
            raise

    def initial_map_size(self) -> int:
        """The region's size in bytes; 0 if it is closed."""
        return 0 if self.closed() else self._size

    def initial_map_offset(self) -> int:
        """The region's offset in the file; 0 if it is closed."""
        return 0 if self.closed() else self._offset

    def file_size(self) -> int:
        """The file's size in bytes now; 0 if it is closed."""
        return 0 if self.closed() else self._file.file.size

    def close(self) -> None:
        """Closes it. Pending transfers continue; closing it again does nothing."""
        self._file.close()

    def closed(self) -> bool:
        """Whether it is closed."""
        return self._file.closed

    def __enter__(self) -> Mmap:
        return self

    def __exit__(self, *raised: Any) -> None:
        close(self.close, raised[1])

    def read(self, buf: Any, size: int | None = None, offset: int = 0) -> int:
        """Reads into memory and returns the number of bytes.

        Args:
            buf: an array, a tensor or a buffer, contiguous.
            size: the number of bytes; by default up to the end of the file.
            offset: the offset in the file.

        Raises:
            IndexError: some bytes are outside the region.
            ValueError: the memory has fewer bytes.
        """
        return self.pread(buf, size, offset).get()

    def pread(
        self,
        buf: Any,
        size: int | None = None,
        offset: int = 0,
        task_size: int | None = None,
    ) -> IOFuture:
        """Starts reading, without waiting; the arguments are those of `read`."""
        if task_size is not None and _memory.count("task_size", task_size) == 0:
            raise ValueError("`task_size` must be a positive integer: omit it")
        if self.closed():
            raise ClosedFile("Cannot read from a closed MmapHandle: open it again")
        offset, end = _memory.count("offset", offset), self.file_size()
        if offset > end:
            text = f"Offset is past the end of file: offset {offset} of {end} bytes"
            raise IndexError(text)
        wanted = end - offset if size is None else _memory.count("size", size)
        there = _memory.size_of(buf)
        if there is not None and wanted > there:
            text = f"cannot read {wanted} bytes into memory of {there} bytes"
            raise ValueError(f"{text}: give `size`")
        if wanted and not self._offset <= offset <= self._offset + self._size - wanted:
            region = f"{self._size} bytes at {self._offset}"
            text = f"Read is out of bound: {wanted} bytes at {offset}, the region has {region}"
            raise IndexError(text)
        return self._file._start("read", buf, wanted, offset, None, "MMAP")


def _region(end: int, offset: int, size: int | None) -> int:
    if end == 0 and offset == 0 and not size:
        return 0  # an empty file has an empty region
    if offset >= end:
        text = f"Offset must be less than the file size: offset {offset} of {end} bytes"
        raise IndexError(text)
    if size == 0:
        text = "Mapped region should not be zero byte: omit `initial_map_size` for the whole file"
        raise ValueError(text)
    if size is not None and size > end - offset:
        region = f"{size} bytes at {offset} of {end}"
        raise IndexError(f"Mapped region is past the end of file: {region}")
    return end - offset if size is None else size
