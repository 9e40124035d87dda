"""Bytes of files as tensors, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from .. import _process
from .._asked import BYTES, whole
from .._errors import shown
from .._replace import by_device, write
from .._types import Path, Place
from ..safetensors._kinds import refuse_formats
from ._places import Offsets, Tensors, dtype_of, nbytes, places, shape_of


def load(
    path: Path,
    dtype: torch.dtype,
    shape: Sequence[int] | int | None = None,
    device: torch.device | str | int | None = None,
    *,
    offset: int = 0,
) -> torch.Tensor:
    """A new tensor with the bytes of a file from `offset` on.

    Args:
        path: the file.
        dtype: what its bytes are elements of.
        shape: of the tensor; without one it is flat, and ends where the file ends.
        device: where the tensor lies; torch's own default where none is given.
        offset: bytes of the file that come before it.

    Raises:
        forebay.EndOfFile: the file ends before the tensor is full.
        forebay.safetensors.FormatError: the file is one of safetensors or of `torch.save`, and
            `offset` is 0; `forebay.safetensors.load_file` loads it.
        ValueError: without a shape, the bytes up to the file's end are no whole elements.
    """
    offset, dtype = whole("offset", offset, BYTES), dtype_of(dtype)
    with _process.open(path) as file:
        if offset == 0:
            refuse_formats(file)
        if shape is None:
            shape = _length(file.size, dtype, path, offset)
        tensor = torch.empty(shape_of("shape", shape), dtype=dtype, device=device)
        file.readv(places(tensor, offset))
    return tensor


def load_into(path: Path, tensors: Tensors, offsets: Offsets | None = None) -> int:
    """Fills tensors with the bytes of a file, in one call for each device, and returns their sum.

    Args:
        path: the file.
        tensors: one, several, or several by name; on GPUs or on the host, each contiguous.
        offsets: where each begins in the file, given as the tensors are. A single number says
            where the first begins, and the others follow without gaps, as `save` puts them.

    All have their bytes when the call returns, on whatever stream they are used next. Where it
    raises, some may have them.

    Raises:
        forebay.safetensors.FormatError: as `load`, if a tensor begins at offset 0.
    """
    wanted = places(tensors, offsets)
    with _process.open(path) as file:
        if any(begin == 0 for begin, _, _ in wanted):
            refuse_formats(file)
        try:
            return sum(file.readv(group).bytes for group in by_device(wanted))
        finally:
            _tell_autograd(wanted)


def save(
    path: Path, tensors: Tensors, offsets: Offsets | None = None, *, sync: bool = True
) -> int:
    """Replaces a file by tensors' bytes and returns how many those are.

    Args:
        path: the file; as with `save_checkpoint` the old one stays whole until the new one takes
            its name, so the tensors may be mapped from it.
        tensors: one, several, or several by name; one after another, in their order.
        offsets: where each begins instead. Bytes between them are zero.
        sync: whether the bytes are on the drive before the file takes its name. Without it the call
            does not wait for the drive, and after a power cut the file may be empty or cut off.
    """
    wanted = places(tensors, offsets)
    _refuse_overlap(wanted)
    return write(path, wanted, sync)


def _length(size: int, dtype: torch.dtype, path: Path, offset: int) -> int:
    """Elements from `offset` to the file's end."""
    item = nbytes(torch.empty(1, dtype=dtype, device="cpu"))
    left = size - offset
    if left < 0 or left % item:
        raise ValueError(
            f"`{shown(path)}` has {max(left, 0)} bytes from {offset} on, which are no whole "
            f"elements of {item} bytes ({dtype}): give the tensor's `shape`"
        )
    return left // item


def _refuse_overlap(wanted: list[Place]) -> None:
    last = -math.inf
    for begin, length, _ in sorted(wanted, key=lambda place: place[0]):
        if begin < last:
            raise ValueError(f"two tensors would both be written at {begin}: look at `offsets`")
        last = begin + length


def _tell_autograd(wanted: list[Place]) -> None:
    """Counts as a change in place, so that a backward pass which needs the old values fails."""
    told: Any = getattr(torch.autograd.graph, "increment_version", None)
    for _, _, tensor in wanted:
        if told is not None and not tensor.is_inference():
            told(tensor)
