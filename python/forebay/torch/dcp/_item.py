"""A tensor of a checkpoint: a small zip, as `torch.save` writes it."""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import torch  # type: ignore[import-not-found,unused-ignore]

from ..._errors import shown
from ...safetensors import FormatError
from ...safetensors._frameworks import NAMES
from ...safetensors._pickle import BAD_PICKLE, View, unpickled

PEEK = 2048
"""Bytes at both ends of an item that hold its headers; torch's take about 1000 at each."""

LOCAL = struct.Struct("<4s22xHH")
"""Before an entry: the signature, and the lengths of its name and of extra fields."""

CENTRAL = struct.Struct("<4s6xH8xIIHHH8xI")
"""In the directory: the signature, the method, both sizes, three lengths, the entry's offset."""

END = struct.Struct("<4s6xHII2x")
"""After the directory: the signature, its number of entries, its size, and its offset."""

END_64 = 56 + 20
"""Bytes of the records between the directory and its end that large zips have."""

TRUST = "give `weights_only=False` if you trust the author of the checkpoint"
"""The hint for objects that could run code."""

_SATURATED = 2**32 - 1


class Refused(Exception):
    """The reason why an item is broken."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a tensor in a storage, in elements.

    Attributes:
        storage: the storage's name.
        elements: how many the storage has.
        first: the index of the tensor's first one.
    """

    storage: str
    elements: int
    dtype: torch.dtype
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def span(
        self, offsets: tuple[int, ...], lengths: tuple[int, ...]
    ) -> tuple[int, int, bool]:
        """The elements that hold a part: the first, how many, and whether they are that part.

        Raises:
            Refused: the tensor has no such part.
        """
        if len(offsets) != len(self.shape) or len(lengths) != len(self.shape):
            raise Refused(f"it has the shape {list(self.shape)}, but the part has {list(lengths)}")
        first, last, dense, row = self.first, 0, True, 1
        for offset, length, size, stride in zip(
            reversed(offsets), reversed(lengths), reversed(self.shape), reversed(self.strides),
            strict=True,
        ):
            if offset < 0 or length < 0 or offset + length > size:
                part = f"of {list(lengths)} from {list(offsets)} on"
                raise Refused(f"it has the shape {list(self.shape)}, but not the part {part}")
            first += offset * stride
            if length != 1:
                last += (length - 1) * stride
                dense &= stride == row
                row *= length
        return (first, last + 1, dense) if row else (0, 0, True)


@lru_cache(maxsize=4096)
def layout(pickled: bytes) -> Layout | None:
    """The layout of a pickled tensor; ``None`` if it is not a plain one.

    Raises:
        Refused: its storage ends before the tensor does.
    """
    try:
        view = unpickled(pickled)
    except BAD_PICKLE:  # torch's own reader reports the error
        return None
    dtype = getattr(torch, NAMES[view.dtype], None) if isinstance(view, View) else None
    if dtype is None:
        return None
    elements, rest = divmod(view.storage.count, 1 if view.storage.dtype else dtype.itemsize)
    if rest:
        return None
    found = Layout(view.storage.key, elements, dtype, view.first, view.shape, view.strides)
    first, count, _ = found.span((0,) * len(found.shape), found.shape)
    if first + count > found.elements:
        raise Refused(f"its payload is too short for the shape {list(found.shape)}")
    return found


def located(head: bytes, tail: bytes, length: int) -> tuple[int, Layout] | None:
    """Where the payload begins in an item, and its layout.

    `None` if only torch can read it, since it is not a plain tensor.

    Args:
        head: the first bytes of the item, up to `PEEK`.
        tail: the last ones.
        length: of the item.

    Raises:
        Refused: it is not a zip as torch writes it, or truncated.
    """
    entries, end = _entries(tail, length)
    folder = min(entries, key=len, default="").partition("/")[0]
    pickled = _inside(head, entries, f"{folder}/data.pkl", end)
    order = _inside(head, entries, f"{folder}/byteorder", end)
    found = layout(pickled) if pickled is not None else None
    if found is None or (f"{folder}/byteorder" in entries and order != b"little"):
        return None
    name = f"{folder}/data/{found.storage}"
    nbytes = found.elements * found.dtype.itemsize
    if name not in entries:
        raise Refused(f"its zip has no `{shown(name[:64])}`")
    size, begin = entries[name]
    if size != nbytes:
        raise Refused(f"its payload has {size} bytes, but its type and shape take {nbytes}")
    start = _start(head, begin, name)
    if start is None:
        return None
    if start + size > end:
        raise Refused("its payload overlaps the zip's directory")
    return start, found


def _entries(tail: bytes, length: int) -> tuple[dict[str, tuple[int, int]], int]:
    """Size and offset of the entries by name, and the offset of their directory."""
    if len(tail) < END.size:
        raise Refused(f"it has {length} bytes, too few for a zip")
    mark, count, size, _ = END.unpack_from(tail, len(tail) - END.size)
    if mark != b"PK\5\6":
        raise Refused("it is not a zip, or truncated")
    end = len(tail) - END.size
    if end >= END_64 and tail[end - END_64 : end - END_64 + 4] == b"PK\6\6":
        end -= END_64
    at = end - size
    if at < 0:
        raise Refused(f"its zip has a directory of {size} bytes, but torch's have less than {PEEK}")
    begin = length - len(tail) + at
    entries: dict[str, tuple[int, int]] = {}
    for _ in range(count):
        if at + CENTRAL.size > end:
            raise Refused("its zip has a truncated directory")
        mark, method, packed, nbytes, name, more, comment, place = CENTRAL.unpack_from(tail, at)
        at += CENTRAL.size
        text = tail[at : at + name].decode(errors="replace")
        if mark != b"PK\1\2" or method != 0:
            raise Refused(f"the entry `{shown(text[:64])}` of its zip is compressed or broken")
        fields = tail[at + name : at + name + more]
        if _SATURATED in (packed, nbytes):
            packed, nbytes = _large(fields)
        if packed != nbytes or text in entries:
            raise Refused(f"its zip has two sizes, or two entries, for `{shown(text[:64])}`")
        entries[text] = nbytes, place
        at += name + more + comment
    return entries, begin


def _large(fields: bytes) -> tuple[int, int]:
    """The sizes of an entry of at least 4 GiB."""
    if len(fields) < 20 or fields[:2] != b"\1\0":
        raise Refused("its zip has no size of its payload")
    nbytes, packed = struct.unpack_from("<QQ", fields, 4)
    return packed, nbytes


def _start(head: bytes, begin: int, name: str) -> int | None:
    """Where the bytes of an entry begin; `None` if its header is not in `head`."""
    if begin + LOCAL.size > len(head):
        return None
    mark, length, more = LOCAL.unpack_from(head, begin)
    at = begin + LOCAL.size
    if mark != b"PK\3\4" or head[at : at + length] != name.encode():
        raise Refused(f"its zip has no `{shown(name[:64])}` where its directory says")
    return int(at + length + more)


def _inside(
    head: bytes, entries: dict[str, tuple[int, int]], name: str, end: int
) -> bytes | None:
    """The bytes of a small entry; `None` if they are not in `head`."""
    size, begin = entries.get(name, (0, end))
    start = _start(head, begin, name)
    if start is None or start + size > min(len(head), end):
        return None
    return head[start : start + size]


def refuse(
    path: str, name: str, why: str, hint: str = "check that the checkpoint is complete",
    error: Exception | None = None,
) -> NoReturn:
    """Raises the error for a broken item."""
    text = f"cannot load the item `{shown(name)}` of `{shown(path)}`: {why}"
    made = FormatError(errno.EINVAL, text, path)
    made.hint = hint
    raise made from error
