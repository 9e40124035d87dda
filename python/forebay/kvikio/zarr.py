"""A store of zarr 3 whose chunks are read and written by the engine."""

# mypy: disable-error-code="import-not-found, misc"

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
from pathlib import Path
from typing import Any

try:
    import zarr.storage
    from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
    from zarr.core.buffer import Buffer
    from zarr.core.buffer.core import default_buffer_prototype
except ImportError as error:
    raise ImportError("`forebay.kvikio.zarr` needs zarr 3: install `zarr>=3`") from error

from .. import _access
from .._forebay import Descriptor
from .cufile import CuFile

__all__ = ["GDSStore"]

_NOT_THERE = {errno.ENOENT, errno.EISDIR, errno.ENOTDIR}


def _range(requested: Any, size: int) -> tuple[int, int]:
    """The requested bytes as the bounds of a slice."""
    match requested:
        case None:
            first, after = 0, size
        case RangeByteRequest():
            first, after = requested.start, requested.end
        case OffsetByteRequest():
            first, after = requested.offset, size
        case SuffixByteRequest():
            first, after = size - requested.suffix, size
        case _:
            text = f"`byte_range` cannot be {requested!r}: give a request of `zarr.abc.store`"
            raise TypeError(text)
    first = max(0, min(first, size))
    return first, max(first, min(after, size))


def _read(path: Path, prototype: Any, requested: Any) -> Buffer:
    with CuFile(path) as file:
        first, after = _range(requested, file.file.size)
        array = prototype.nd_buffer.create(shape=(after - first,), dtype="B").as_ndarray_like()
        file.read(array, file_offset=first)
    made: Buffer = prototype.buffer.from_array_like(array)
    return made


def _write(path: Path, value: Buffer, exclusive: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # A concurrent reader finds the old bytes or the new ones, never a mixture.
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.", suffix=".partial")
    try:
        try:
            with CuFile(name, "w") as file:
                file.write(value.as_array_like())
            _set_access(number, path)
        finally:
            os.close(number)
        if exclusive:
            os.link(name, path)
        else:
            os.replace(name, path)
            return
    except BaseException:
        os.unlink(name)
        raise
    os.unlink(name)


def _set_access(number: int, path: Path) -> None:
    """Gives a new file the access rights of the one that it replaces, or the default ones."""
    try:
        old = Descriptor(path, os.O_PATH)
    except FileNotFoundError:
        os.fchmod(number, 0o666 & ~_umask())
        return
    with old:
        _access.keep(old.number, number, os.fspath(path))


def _umask() -> int:
    # `os.umask` would change it for all threads.
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        for line in status:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o022


class GDSStore(zarr.storage.LocalStore):
    """A folder of chunks, which are read directly into the memory of zarr's buffers."""

    def __repr__(self) -> str:
        return f"<forebay.kvikio.zarr.GDSStore of {str(self.root)!r}>"

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Buffer | None:
        """The bytes of a key, all or some; `None` for an unknown key."""
        if prototype is None:
            prototype = default_buffer_prototype()
        if not self._is_open:
            await self._open()
        try:
            return await asyncio.to_thread(_read, self.root / key, prototype, byte_range)
        except OSError as failed:
            if failed.errno in _NOT_THERE:
                return None
            raise

    async def set(self, key: str, value: Buffer) -> None:
        """Stores the bytes of a key."""
        await self._set(key, value)

    async def _set(self, key: str, value: Buffer, exclusive: bool = False) -> None:
        if not self._is_open:
            await self._open()
        self._check_writable()
        if not isinstance(value, Buffer):
            kind = type(value).__name__
            raise TypeError(f"`value` cannot be `{kind}`: give a Buffer instance of zarr")
        await asyncio.to_thread(_write, self.root / key, value, exclusive)
