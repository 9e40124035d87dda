"""The bytes around a tensor in an item: the records of a small zip."""

from __future__ import annotations

import io
import math
import pickle
import struct
import sys
import zlib
from collections import OrderedDict
from functools import lru_cache
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from ...safetensors._pickle import STORAGES

_LOCAL = struct.Struct("<4sHHHIIIIHH")
_CENTRAL = struct.Struct("<4sHHHHIIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_LARGE = struct.Struct("<HHQQ")

_VERSION = 45
"""The zip version that sizes of 4 GiB need."""

_SATURATED = 2**32 - 1

_NAMES = {getattr(torch, dtype): f"{name}Storage" for name, dtype in STORAGES.items()}


@lru_cache(maxsize=4096)
def frame(dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[bytes, bytes]:
    """The bytes around those of a contiguous tensor.

    The checksum of the tensor's bytes is zero: torch does not check it.
    """
    small = {
        "data.pkl": _pickled(dtype, shape),
        "byteorder": sys.byteorder.encode(),
        "version": b"3\n",
    }
    head, directory = b"", b""
    for name, content in small.items():
        local, central = _entry(name, len(head), len(content), zlib.crc32(content))
        head += local + content
        directory += central
    nbytes = math.prod(shape) * dtype.itemsize
    local, central = _entry("data/0", len(head), nbytes, 0)
    head += local
    directory += central
    # A directory at 4 GiB or later needs the records of large zips at its end.
    begin = len(head) + nbytes
    count, length = len(small) + 1, len(directory)
    if begin >= _SATURATED:
        at = begin + length
        directory += struct.pack(
            "<4sQHHIIQQQQ", b"PK\6\6", 44, _VERSION, _VERSION, 0, 0, count, count, length, begin
        )
        directory += struct.pack("<4sIQI", b"PK\6\7", 0, at, 1)
        begin = _SATURATED
    return head, directory + _END.pack(b"PK\5\6", 0, 0, count, count, length, begin, 0)


def _entry(name: str, at: int, nbytes: int, checksum: int) -> tuple[bytes, bytes]:
    """The local header of an entry, and its entry in the directory."""
    path = f"archive/{name}".encode()
    more = b""
    if nbytes >= _SATURATED:
        more, nbytes = _LARGE.pack(1, 16, nbytes, nbytes), _SATURATED
    about = (_VERSION, 0, 0, 0, checksum, nbytes, nbytes, len(path), len(more))
    local = _LOCAL.pack(b"PK\3\4", *about) + path + more
    return local, _CENTRAL.pack(b"PK\1\2", _VERSION, *about, 0, 0, 0, 0, at) + path + more


class _Storage:
    """Pickled as the storage of a tensor."""

    def __init__(self, *saved: Any) -> None:
        self.saved = saved


class _Tensor:
    """Pickled as a tensor."""

    def __init__(self, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self._dtype = dtype
        self._shape = shape

    def __reduce__(self) -> Any:
        elements = math.prod(self._shape)
        strides = torch.empty(self._shape, device="meta").stride()
        how: tuple[Any, ...] = (0, self._shape, strides, False, OrderedDict())
        if name := _NAMES.get(self._dtype):
            storage = _Storage("storage", getattr(torch, name), "0", "cpu", elements)
            return torch._utils._rebuild_tensor_v2, (storage, *how)
        nbytes = elements * self._dtype.itemsize
        storage = _Storage("storage", torch.UntypedStorage, "0", "cpu", nbytes)
        return torch._utils._rebuild_tensor_v3, (storage, *how, self._dtype)


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.saved if isinstance(value, _Storage) else None


def _pickled(dtype: torch.dtype, shape: tuple[int, ...]) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, protocol=2).dump(_Tensor(dtype, shape))
    return stream.getvalue()
