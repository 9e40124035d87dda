"""A tensor of a checkpoint: a small zip, as `torch.save` writes it."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import torch  # type: ignore[import-not-found,unused-ignore]

from ... import _forebay
from ..._errors import shown
from ...safetensors import FormatError
from ...safetensors._frameworks import NAMES
from ...safetensors._header import HEADER_MAX
from ...safetensors._pickle import BAD_PICKLE, tensor, unpickled

PEEK = 2048
"""Bytes at both ends of an item that hold its headers; torch's take about 1000 at each."""

LOCAL = struct.Struct("<4s22xHH")
"""Before an entry: the signature, and the lengths of its name and of extra fields."""

TRUST = "give `weights_only=False` if you trust the author of the checkpoint"
"""The hint for objects that could run code."""

KEYS_MAX = 1000
"""Most keys of one dictionary whose hashes a file could make collide."""


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
        view = tensor(unpickled(pickled))
    except BAD_PICKLE:  # torch's own reader reports the error
        return None
    dtype = getattr(torch, NAMES[view.dtype], None)
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


def located(
    head: bytes, tail: bytes, length: int, read: Callable[[int, int], bytes] | None = None
) -> tuple[int, Layout] | None:
    """Where the payload begins in an item, and its layout.

    `None` if only torch can read it, since it is not a plain tensor.

    Args:
        head: the first bytes of the item, up to `PEEK`.
        tail: the last ones.
        length: of the item.
        read: returns as many bytes of the item from an offset on.

    Raises:
        Refused: it is not a zip as torch writes it, or truncated.
    """
    try:
        zipped = _forebay.Archive.of(tail, length)
        root = zipped.root()
        pickled = _inside(head, zipped, f"{root}/data.pkl", read)
        order = _inside(head, zipped, f"{root}/byteorder", read)
        found = layout(pickled) if pickled is not None else None
        if found is None:
            if pickled is not None:
                _check(pickled)
            return None
        if zipped.entry(f"{root}/byteorder") and order != b"little":
            return None
        name = f"{root}/data/{found.storage}"
        if (entry := zipped.entry(name)) is None:
            raise Refused(f"its zip has no `{shown(name[:64])}`")
    except ValueError as error:
        raise Refused(f"it is not a zip as torch writes it: {shown(error)}") from error
    begin, size, end = entry
    nbytes = found.elements * found.dtype.itemsize
    if size != nbytes:
        raise Refused(f"its payload has {size} bytes, but its type and shape take {nbytes}")
    start = _start(head, begin, name)
    if start is None:
        return None
    if start + size > end:
        raise Refused("its payload overlaps the zip's directory")
    return start, found


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
    head: bytes, zipped: _forebay.Archive, name: str,
    read: Callable[[int, int], bytes] | None = None,
) -> bytes | None:
    """The bytes of a small entry; `None` if they are not in `head` and cannot be read."""
    if (entry := zipped.entry(name)) is None:
        return None
    begin, size, end = entry
    if end <= len(head):
        head = head[begin:end]
    elif read is None or end - begin > HEADER_MAX:
        return None
    else:
        head = read(begin, end - begin)
    start = _start(head, 0, name)
    if start is None or start + size > len(head):
        raise Refused(f"its entry `{shown(name[:64])}` overlaps the next one")
    return head[start : start + size]


def _check(pickled: bytes) -> None:
    """Refuses a pickle that torch's own unpickler could read as another one, or without end."""
    _forebay.unpickled(pickled, len(pickled), keys_max=KEYS_MAX)


def check(item: bytes) -> None:
    """Refuses an item that torch could read as another one.

    Raises:
        ValueError, Refused: the reason.
    """
    zipped = _forebay.Archive.of(item, len(item))
    pickled = _inside(item, zipped, f"{zipped.root()}/data.pkl")
    if pickled is None:
        raise Refused("it has no pickle")
    _check(pickled)


def refuse(
    path: str, name: str, why: str, hint: str = "check that the checkpoint is complete",
    error: Exception | None = None,
) -> NoReturn:
    """Raises the error for a broken item."""
    text = f"cannot load the item `{shown(name)}` of `{shown(path)}`: {why}"
    made = FormatError(errno.EINVAL, text, path)
    made.hint = hint
    raise made from error
