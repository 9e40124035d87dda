"""Bytes of files as tensors, and back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from .. import _process
from .._arguments import BYTES, whole
from .._errors import shown
from .._replace import by_device, write
from .._types import Path, Place
from ..safetensors._frameworks import torch_device
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
        dtype: the type of its elements.
        shape: its shape; by default it is flat, up to the end of the file.
        device: its device; by default torch's own default.
        offset: its offset in the file.

    Raises:
        forebay.EndOfFile: the file ends before the tensor is full.
        forebay.safetensors.FormatError: the file is one of safetensors or of `torch.save`, unless
            `offset` is not 0 or the tensor has the file's size; `forebay.load_file` loads it.
        ValueError: without a shape, the bytes are not a whole number of elements.
    """
    offset, dtype = whole("offset", offset, BYTES), dtype_of(dtype)
    with _process.open(path) as file:
        if shape is None:
            if offset == 0:
                refuse_formats(file)
            shape = _length(file.size, dtype, path, offset)
        device = None if device is None else torch_device(device)
        tensor = torch.empty(shape_of("shape", shape), dtype=dtype, device=device)
        if offset == 0 and file.size != nbytes(tensor):
            refuse_formats(file)
        file.readv(places(tensor, offset))
    return tensor


def load_into(path: Path, tensors: Tensors, offsets: Offsets | None = None) -> int:
    """Fills tensors with the bytes of a file, in one call per device; returns the bytes read.

    Args:
        path: the file.
        tensors: one, several, or several by name; on GPUs or on the host, each contiguous.
        offsets: the offset of each in the file, in the form of the tensors. A single number is the
            offset of the first; the others follow without gaps, as `save` writes them.

    When the call returns, the tensors are ready on every stream. If it raises, some may have been
    filled.

    Raises:
        forebay.safetensors.FormatError: as `load`, for a tensor at offset 0.
    """
    wanted = places(tensors, offsets)
    with _process.open(path) as file:
        if any(begin == 0 and length != file.size for begin, length, _ in wanted):
            refuse_formats(file)
        try:
            return sum(file.readv(group).bytes for group in by_device(wanted))
        finally:
            _notify_autograd(wanted)


def save(
    path: Path, tensors: Tensors, offsets: Offsets | None = None, *, sync: bool = True
) -> int:
    """Replaces a file by the bytes of tensors, and returns their number.

    Args:
        path: the file. As with `save_checkpoint`, the old one stays whole until the new one gets
            its name, so the tensors may be mapped from it.
        tensors: one, several, or several by name; one after another, in their order.
        offsets: the offset of each instead. Bytes between them are zero.
        sync: whether the bytes are on the drive before the file gets its name. Without it the call
            does not wait for the drive, and after a power cut the file may be empty or truncated.
    """
    wanted = places(tensors, offsets)
    _refuse_overlap(wanted)
    return write(path, wanted, sync)


def _length(size: int, dtype: torch.dtype, path: Path, offset: int) -> int:
    """The number of elements from `offset` to the end of the file."""
    item = nbytes(torch.empty(1, dtype=dtype, device="cpu"))
    left = size - offset
    if left < 0 or left % item:
        raise ValueError(
            f"`{shown(path)}` has {max(left, 0)} bytes from {offset} on, not a multiple of {item}, "
            f"the size of {dtype}: give the tensor's `shape`"
        )
    return left // item


def _refuse_overlap(wanted: list[Place]) -> None:
    last = -math.inf
    for begin, length, _ in sorted(wanted, key=lambda place: place[0]):
        if begin < last:
            raise ValueError(f"two tensors overlap at offset {begin}: check `offsets`")
        last = begin + length


def _notify_autograd(wanted: list[Place]) -> None:
    """Counts as an in-place change, so that a backward pass that needs the old values fails."""
    reported: Any = getattr(torch.autograd.graph, "increment_version", None)
    for _, _, tensor in wanted:
        if reported is not None and not tensor.is_inference():
            reported(tensor)
