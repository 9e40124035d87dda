"""Files with KvikIO's interface."""

from __future__ import annotations

import errno
import os
import pathlib
import stat
from typing import Any

from .._errors import close, shown
from .._forebay import Descriptor, File, Transfer
from .._mapped import refuse_cut
from . import _memory, defaults
from ._engines import engine
from ._errors import ClosedFile, in_own_classes, missing
from ._page_cache import (
    clear_page_cache,
    drop_file_page_cache,
    drop_system_page_cache,
    get_page_cache_info,
)
from .statistics import Operation, operation

__all__ = [
    "CuFile",
    "IOFuture",
    "IOFutureStream",
    "clear_page_cache",
    "drop_file_page_cache",
    "drop_system_page_cache",
    "get_page_cache_info",
]

_FLAGS = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
}

_MODE_OF_NEW_FILES = 0o644


class IOFuture:
    """A transfer in progress. It keeps the memory and the file."""

    __slots__ = ("_operation", "transfer")

    transfer: Transfer
    """The engine's own future, which can be awaited, cancelled and queried for progress."""

    def __init__(self, transfer: Transfer, operation: Operation | None = None) -> None:
        self.transfer, self._operation = transfer, operation
        if operation is not None:
            transfer.add_done_callback(operation.ended)

    def get(self) -> int:
        """Waits for the end and returns the number of bytes; it may be called again."""
        try:
            with in_own_classes():
                return self.transfer.result()
        finally:
            # The callback runs on a separate thread, perhaps after this returns.
            if self._operation is not None and self.transfer.done():
                self._operation.ended(self.transfer)

    def done(self) -> bool:
        """Whether it has ended."""
        return self.transfer.done()

    def __reduce_ex__(self, protocol: Any) -> Any:
        kind = type(self).__name__
        raise TypeError(f"cannot copy or pickle `{kind}`: it belongs to this process")


class IOFutureStream(IOFuture):
    """A transfer in progress, in the order of a stream."""

    __slots__ = ()

    def check_bytes_done(self) -> int:
        """Waits for the end and returns the number of bytes."""
        return self.get()


class CuFile:
    """A file to read to, and write from, memory on the host or on a GPU."""

    def __init__(self, file: pathlib.Path | str, flags: str = "r") -> None:
        """Opens a file by its path.

        Args:
            file: the path.
            flags: ``r``, ``r+``, ``w`` (truncates the file) or ``w+``; a ``b`` changes nothing.

        Raises:
            forebay.RequestError: the file would be truncated, but is mapped in this process.
            FileNotFoundError: there is no such file; it is a ``RuntimeError`` as well.
            ValueError: other flags.
        """
        path = os.fspath(file)
        number = _FLAGS.get(flags.replace("b", ""))
        if number is None:
            text = f"unknown flags `{shown(flags)}`: use `r`, `r+`, `w` or `w+`"
            raise ValueError(text)
        self._path = path
        if number & os.O_TRUNC:
            with in_own_classes():
                refuse_cut(path, flags)
        try:
            self._descriptor = _opened(path, number)
        except OSError as error:
            raise missing(error, f"cannot open `{shown(path)}`") from None
        try:
            with in_own_classes():
                self._file: File = engine().open(self._descriptor.number)
        except BaseException:
            self._descriptor.close()
            raise

    def close(self) -> None:
        """Closes it. Pending transfers continue; closing it again does nothing.

        Copies by `copy.copy` share the file, and are closed with it.

        Raises:
            OSError: the file system reports that bytes written earlier may be lost; the file is
                closed anyway. It is a ``RuntimeError`` as well.
        """
        try:
            self._descriptor.close()
        except OSError as error:
            error.filename = self._path
            raise missing(error, f"cannot close `{shown(self._path)}`") from None
        finally:
            with in_own_classes():
                self._file.close()

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._descriptor.number < 0

    @property
    def file(self) -> File:
        """The engine's own file."""
        if self.closed:
            raise ClosedFile(f"`{shown(self._path)}` is closed: open it again")
        return self._file

    def fileno(self) -> int:
        """Its descriptor, or -1 if it is closed."""
        return self._descriptor.number

    def open_flags(self) -> int:
        """The flags of its descriptor, as open(2) takes them."""
        import fcntl

        self.file  # noqa: B018 (raises if it is closed)
        return fcntl.fcntl(self.fileno(), fcntl.F_GETFL)

    def __enter__(self) -> CuFile:
        return self

    def __exit__(self, *raised: Any) -> None:
        close(self.close, raised[1])

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"<forebay.kvikio.CuFile {os.fsdecode(self._path)!r}{closed}>"

    def pread(
        self,
        buf: Any,
        size: int | None = None,
        file_offset: int = 0,
        task_size: int | None = None,
    ) -> IOFuture:
        """Starts reading into memory, without waiting.

        Args:
            buf: an array, a tensor or a buffer, contiguous.
            size: the number of bytes; by default the size of the memory.
            file_offset: the offset in the file.
            task_size: has no effect here.

        Raises:
            ValueError: the memory has fewer bytes, or is read-only.
        """
        return self._start("read", buf, size, file_offset, task_size)

    def pwrite(
        self,
        buf: Any,
        size: int | None = None,
        file_offset: int = 0,
        task_size: int | None = None,
    ) -> IOFuture:
        """Starts writing from memory, without waiting; the arguments are those of `pread`."""
        return self._start("write", buf, size, file_offset, task_size)

    def read(
        self,
        buf: Any,
        size: int | None = None,
        file_offset: int = 0,
        task_size: int | None = None,
    ) -> int:
        """Reads into memory and returns the number of bytes, as `pread` and `get` do.

        Raises:
            EOFError: the file ends early; it is a ``RuntimeError`` as well.
        """
        with in_own_classes():
            return self._run("read", buf, size, file_offset, task_size)

    def write(
        self,
        buf: Any,
        size: int | None = None,
        file_offset: int = 0,
        task_size: int | None = None,
    ) -> int:
        """Writes from memory and returns the number of bytes, as `pwrite` and `get` do."""
        with in_own_classes():
            return self._run("write", buf, size, file_offset, task_size)

    def raw_read(
        self, buf: Any, size: int | None = None, file_offset: int = 0, dev_offset: int = 0
    ) -> int:
        """Reads into memory on a GPU, from the byte `dev_offset` on."""
        part, size = self._part(buf, size, dev_offset)
        return self.read(part, size, file_offset)

    def raw_write(
        self, buf: Any, size: int | None = None, file_offset: int = 0, dev_offset: int = 0
    ) -> int:
        """Writes from memory on a GPU, from the byte `dev_offset` on."""
        part, size = self._part(buf, size, dev_offset)
        return self.write(part, size, file_offset)

    def raw_read_async(
        self,
        buf: Any,
        raw_stream: int,
        size: int | None = None,
        file_offset: int = 0,
        dev_offset: int = 0,
    ) -> IOFutureStream:
        """Reads into memory on a GPU in the order of a stream, without waiting."""
        part, size = self._part(buf, size, dev_offset)
        return self._queue("read", part, raw_stream, size, file_offset)

    def raw_write_async(
        self,
        buf: Any,
        raw_stream: int,
        size: int | None = None,
        file_offset: int = 0,
        dev_offset: int = 0,
    ) -> IOFutureStream:
        """Writes from memory on a GPU in the order of a stream, without waiting."""
        part, size = self._part(buf, size, dev_offset)
        return self._queue("write", part, raw_stream, size, file_offset)

    def is_direct_io_supported(self) -> bool:
        """Whether it can be read with O_DIRECT, as far as that is known."""
        return not self.closed and defaults.direct_io() and not self.file.about()["no_direct_io"]

    def _start(
        self,
        way: str,
        buf: Any,
        size: Any,
        offset: Any,
        task_size: Any,
        backend: str = "POSIX",
    ) -> IOFuture:
        size, offset = _numbers(size, offset, task_size)
        file, counted = self.file, operation(way, buf, size, backend)
        start = file.start_read_into if way == "read" else file.start_write_from
        with in_own_classes(), _failing(counted):
            return IOFuture(start(buf, offset, size=size), counted)

    def _queue(self, way: str, buf: Any, stream: int, size: Any, offset: Any) -> IOFutureStream:
        size, offset = _numbers(size, offset, None)
        file, counted = self.file, operation(way, buf, size)
        start = file.start_read_into if way == "read" else file.start_write_from
        with in_own_classes(), _failing(counted):
            return IOFutureStream(start(buf, offset, size=size, stream=stream), counted)

    def _run(self, way: str, buf: Any, size: Any, offset: Any, task_size: Any) -> int:
        size, offset = _numbers(size, offset, task_size)
        file, counted = self.file, operation(way, buf, size)
        run = file.read_into if way == "read" else file.write_from
        with _failing(counted):
            moved = run(buf, offset, size=size)
        if counted is not None:
            counted.end(moved)
        return moved

    def _part(self, buf: Any, size: Any, offset: Any) -> tuple[Any, int | None]:
        wanted = None if size is None else _memory.count("size", size)
        return _memory.part_of(buf, _memory.count("dev_offset", offset), wanted)


def _opened(path: str | bytes, flags: int) -> Descriptor:
    opened = Descriptor(path, flags, _MODE_OF_NEW_FILES)
    if stat.S_ISDIR(os.fstat(opened.number).st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return opened


class _failing:
    """Counts an operation as failed if it raises."""

    def __init__(self, counted: Operation | None) -> None:
        self.counted = counted

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None and self.counted is not None:
            self.counted.end(0, failed=True)


def _numbers(size: Any, offset: Any, task_size: Any) -> tuple[int | None, int]:
    if task_size is not None:
        _memory.count("task_size", task_size)
    wanted = None if size is None else _memory.count("size", size)
    return wanted, _memory.count("file_offset", offset)
