"""What the calls take, for type checkers only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Literal, Protocol, TypeAlias

Path: TypeAlias = str | bytes | os.PathLike[str] | os.PathLike[bytes]

Device: TypeAlias = Any
"""``"cuda:0"``, a GPU's number, its UUID or PCI address, ``"cpu"``, a device of torch."""

Memory: TypeAlias = Any
"""An array or tensor, a buffer, or ``(address, length, device)``, contiguous."""

Place: TypeAlias = tuple[int, int, Memory]
"""An offset, a length and the memory: what `forebay.File.readv` and `writev` take."""

Stream: TypeAlias = Any
"""``"current"``, ``None``, a stream of torch, cupy, numba or ``cuda.core``, or a raw one."""

Numbers: TypeAlias = Any
"""Whole numbers from zero up: an array with the buffer protocol, or a list."""

Route: TypeAlias = Literal["direct", "staged", "cached", "host"]

Sync: TypeAlias = Literal["data", "all"]


class HasStream(Protocol):
    """CUDA's own protocol for streams."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


Request: TypeAlias = tuple[Any, int, int, Memory]
Requests: TypeAlias = Iterable[Request]
