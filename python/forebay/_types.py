"""Types of arguments, for type checkers only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

Device: TypeAlias = Any
"""``"cuda:0"``, a GPU's number, UUID or PCI address, ``"cpu"``, or a device of torch.

As an argument, ``None`` is the call's default, as if it was left out.
"""

Memory: TypeAlias = Any
"""An array or tensor, a buffer, or ``(address, length, device)``, contiguous."""

Place: TypeAlias = tuple[int, int, Memory]
"""An offset, a length and the memory: a request of `forebay.File.readv` and `writev`."""

Stream: TypeAlias = Any
"""``"current"``, ``None``, a stream of torch, cupy, numba or ``cuda.core``, or a raw stream."""

Numbers: TypeAlias = Any
"""Whole numbers, none negative: an array with the buffer protocol, or a list."""

Route: TypeAlias = Literal["direct", "staged", "cached", "host"]

Sync: TypeAlias = Literal["data", "all"]


class HasStream(Protocol):
    """CUDA's own protocol for streams."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class _Move(TypedDict, total=False):
    """Keywords of all calls that move bytes."""

    stream: Stream
    urgent: bool


class _Reading(_Move, total=False):
    exact: bool
    route: Route | None


class _Pieces(TypedDict, total=False):
    """Keywords of all calls with several requests."""

    device: Device
    check: bool


class _Arrays(_Pieces, total=False):
    """Requests as arrays."""

    files: Any
    file_of: Numbers
    offsets: Numbers
    lengths: Numbers
    at: Numbers
    addresses: Numbers


class Read(_Reading, total=False):
    """The keywords of `forebay.File.read_into`, which it describes."""

    size: int | None


class Write(_Move, total=False):
    """The keywords of `forebay.File.write_from`, which it describes."""

    size: int | None
    sync: Sync | None
    route: Route | None
    past_cache: bool


class ReadV(_Reading, _Pieces, total=False):
    """The keywords of `forebay.File.readv`."""


class WriteV(_Move, _Pieces, total=False):
    """The keywords of `forebay.File.writev`."""

    sync: Sync | None


class ReadMany(ReadV, _Arrays, total=False):
    """The keywords of `forebay.read_many`, which it describes."""

    target: Memory


class WriteMany(WriteV, _Arrays, total=False):
    """The keywords of `forebay.write_many`, which it describes."""

    source: Memory


class Load(TypedDict, total=False):
    """The keywords of `forebay.load_file`, which it describes."""

    backend: str
    names: Any
    framework: str
    dtype: Any
    shard: Any
    rank: int | None
    world_size: int | None
    group: Any
    copy: bool
    progress: Any
    report: dict[str, Any] | None
    engine: Any


Request: TypeAlias = tuple[Any, int, int, Memory]
Requests: TypeAlias = Iterable[Request]
