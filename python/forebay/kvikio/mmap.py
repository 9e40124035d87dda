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
        """Opens a file, of which a region is read.

        Args:
            file_path: the file's path.
            flags: ``r`` or ``r+``; nothing is written either way.
            initial_map_size: the region's bytes; all that follow where it is `None`.
            initial_map_offset: where it begins.
            mode: is KvikIO's, for files that it makes, and changes nothing.
            map_flags: is KvikIO's, for its mapping, and changes nothing.

        Raises:
            IndexError: the region lies beyond the end of the file.
            ValueError: the region is empty, or the flags ask for writing alone.
        """
        if flags.replace("b", "") not in {"r", "r+"}:
            text = f"no flags `{shown(flags)}`: a map is opened by `r` or `r+`, and only read"
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
        """The region's bytes; 0 where it is closed."""
        return 0 if self.closed() else self._size

    def initial_map_offset(self) -> int:
        """Where the region begins; 0 where it is closed."""
        return 0 if self.closed() else self._offset

    def file_size(self) -> int:
        """The file's bytes now; 0 where it is closed."""
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
        """Reads into memory and returns how many bytes there were.

        Args:
            buf: an array, a tensor or a buffer, contiguous.
            size: how many bytes; all to the end of the file where it is `None`.
            offset: where they begin in the file.

        Raises:
            IndexError: they are not all of the region.
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
        """Begins to read, and does not wait; the arguments are those of `read`."""
        if task_size is not None and _memory.count("task_size", task_size) == 0:
            raise ValueError("`task_size` is 0: leave it out")
        if self.closed():
            raise ClosedFile("this map is closed: open it again")
        offset, end = _memory.count("offset", offset), self.file_size()
        if offset > end:
            raise IndexError(f"`offset` {offset} lies beyond the {end} bytes of the file")
        wanted = end - offset if size is None else _memory.count("size", size)
        there = _memory.size_of(buf)
        if there is not None and wanted > there:
            text = f"{wanted} bytes are to be read, and the memory given has {there}"
            raise ValueError(f"{text}: give `size`")
        if wanted and not self._offset <= offset <= self._offset + self._size - wanted:
            region = f"{self._size} bytes at {self._offset}"
            text = f"{wanted} bytes at {offset} are not all of the region, which is {region}"
            raise IndexError(text)
        return self._file._start("read", buf, wanted, offset, None, "MMAP")


def _region(end: int, offset: int, size: int | None) -> int:
    if end == 0 and offset == 0 and not size:
        return 0  # an empty file has an empty region
    if offset >= end:
        raise IndexError(f"a region at {offset} lies beyond the {end} bytes of the file")
    if size == 0:
        raise ValueError("a region of 0 bytes: leave `initial_map_size` out for the whole file")
    if size is not None and size > end - offset:
        text = f"a region of {size} bytes at {offset} ends beyond the {end} bytes of the file"
        raise IndexError(text)
    return end - offset if size is None else size
