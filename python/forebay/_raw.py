"""A file of an engine as a raw file of Python."""

from __future__ import annotations

import io
import operator
import os
from typing import TYPE_CHECKING, Any

from . import _errors

if TYPE_CHECKING:
    from ._forebay import File


class RawFile(io.RawIOBase):
    """A view of a `File` with a position, for libraries that read and write files.

    It closes the file when it is closed. `io.BufferedReader(RawFile(file))` buffers it.
    """

    def __init__(self, file: File) -> None:
        super().__init__()
        self._file = file
        self._at = 0

    @property
    def name(self) -> Any:
        """The file's path."""
        return self._file.name

    @property
    def mode(self) -> str:
        """The mode as Python names it, always with a ``b``."""
        plain = self._file.mode.replace("b", "")
        return {"x+": "xb+", "w+": "rb+", "r+": "rb+", "rw": "rb+"}.get(plain, plain + "b")

    def readable(self) -> bool:
        """Always true: every mode of an engine allows reading."""
        self._check()
        return True

    def writable(self) -> bool:
        """Whether it was opened for writing."""
        self._check()
        return self._file.mode.replace("b", "") != "r"

    def seekable(self) -> bool:
        """Always true."""
        self._check()
        return True

    def tell(self) -> int:
        """The position of the next byte to read or write."""
        self._check()
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Sets the position, counted from the start, from the current one, or from the end."""
        self._check()
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}
        if whence not in bases and whence != os.SEEK_END:
            raise _errors.refused(f"`whence` cannot be `{whence}`: it takes 0, 1 or 2")
        offset = operator.index(offset)
        at = offset + (self._file.size if whence == os.SEEK_END else bases[whence])
        if not 0 <= at < 1 << 63:
            where = "before the start" if at < 0 else "after the end"
            raise _errors.refused(f"cannot set the position to {at:#x}: that is {where} of any file")
        self._at = at
        return at

    def read(self, size: int | None = -1, /) -> bytes:
        """Reads up to `size` bytes, by default up to the end of the file."""
        return super().read(-1 if size is None else size) or b""

    def readinto(self, buffer: Any, /) -> int:
        """Fills a buffer from the position on, up to the end of the file."""
        self._check()
        try:
            count = self._file.read_into(buffer, self._at, exact=False)
        except BufferError as error:
            raise TypeError(str(error)) from None  # as a file of Python
        self._at += count
        return count

    def readall(self) -> bytes:
        """Reads up to the end of the file."""
        self._check()
        left = bytearray(max(self._file.size - self._at, 0))
        count = self.readinto(left)
        rest = super().readall() or b""  # a file that grew, or whose size is not known
        return bytes(memoryview(left)[:count]) + rest

    def write(self, data: Any, /) -> int:
        """Writes a buffer at the position."""
        if not self.writable():
            raise io.UnsupportedOperation("the file is open for reading only")
        count = self._file.write_from(data, self._at)
        self._at += count
        return count

    def truncate(self, size: int | None = None, /) -> int:
        """Sets the length of the file, by default to the position, which stays; returns it."""
        if not self.writable():
            raise io.UnsupportedOperation("the file is open for reading only")
        length = self._at if size is None else operator.index(size)
        self._file.truncate(length)
        return length

    def close(self) -> None:
        """Closes it, and the file with it."""
        if not self.closed:
            super().close()
            self._file.close()

    def __exit__(self, *raised: Any) -> None:
        _errors.close(self.close, raised[1])

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("cannot copy or pickle a `RawFile`: it owns an open file")

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
