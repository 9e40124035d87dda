"""The file that is loaded: safetensors, read and written by this module alone.

A header in JSON says where each tensor's bytes lie behind it. No library of those that are
measured has a part in making or in checking the file.
"""

from __future__ import annotations

import json
import os
import random
import stat
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._access import keep
from .._errors import shown

_LENGTH = 8
"""Bytes of the number that says how long the header is."""

_HEADER_MOST = 100_000_000
_ITEM_BYTES = 2
_BLOCK = 16 << 20


@dataclass(frozen=True)
class Tensor:
    """One tensor, as the header has it; `begin` and `end` count from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Model:
    """A file and its tensors, in the order of their bytes."""

    path: Path
    begin: int
    end: int
    tensors: list[Tensor]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors: what a load has to move."""
        return self.end - self.begin


def opened(path: Path) -> Model:
    """Reads a file's header."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(_LENGTH), "little")
        if size < _LENGTH or length > min(size - _LENGTH, _HEADER_MOST):
            raise ValueError(f"`{shown(path)}` is no safetensors file: its header would not fit")
        try:
            header: dict[str, Any] = json.loads(file.read(length))
        except ValueError as error:
            raise ValueError(f"`{shown(path)}` is no safetensors file: {error}") from error
    header.pop("__metadata__", None)
    begin = _LENGTH + length
    tensors = [_tensor(name, entry, begin) for name, entry in header.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    end = begin
    for tensor in tensors:
        if tensor.begin != end or tensor.end < tensor.begin:
            text = f"tensor `{shown(tensor.name)}` does not begin where it should"
            raise ValueError(f"`{shown(path)}`: {text}")
        end = tensor.end
    if end != size:
        raise ValueError(f"`{shown(path)}` has {size} bytes, and its header tells of {end}")
    return Model(path, begin, end, tensors)


def _tensor(name: str, entry: dict[str, Any], begin: int) -> Tensor:
    first, end = entry["data_offsets"]
    return Tensor(name, entry["dtype"], tuple(entry["shape"]), begin + first, begin + end)


def make(path: Path, nbytes: int, count: int, seed: int) -> None:
    """Writes `count` tensors of random bytes, `nbytes` in all, and brings them to the drive.

    The file has its name only when it is whole.
    """
    items = max(nbytes // count // _ITEM_BYTES, 1)
    length = items * _ITEM_BYTES
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    entries |= {
        f"layer.{number:05}": {
            "dtype": "BF16",
            "shape": [items],
            "data_offsets": [number * length, (number + 1) * length],
        }
        for number in range(count)
    }
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(len(header).to_bytes(_LENGTH, "little") + header)
            for block in range(0, length * count, _BLOCK):
                rest = min(_BLOCK, length * count - block)
                file.write(random.Random(seed * 1_000_003 + block).randbytes(rest))
            file.flush()
            _give_access(path, file.fileno())
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _give_access(path: Path, new: int) -> None:
    """Lets all read a new file, or those who may use the file that it replaces."""
    with suppress(FileNotFoundError):
        old = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if stat.S_ISREG(os.fstat(old).st_mode):
                keep(old, new, str(path))
                return
        finally:
            os.close(old)
    os.fchmod(new, 0o644)
