"""Which bytes of a file are whose: tensors by name or by number, each with its offset."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch  # type: ignore[import-not-found,unused-ignore]

Tensors: TypeAlias = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
"""One tensor, several, or several by name."""

Offsets: TypeAlias = int | Sequence[int] | Mapping[str, int]
"""Where each begins in the file, given as the tensors are."""

Place: TypeAlias = tuple[int, int, Any]
"""An offset, a length and the memory: what `forebay.File.readv` takes."""


def places(tensors: Tensors, offsets: Offsets | None) -> list[Place]:
    """A place for each tensor that has bytes: where `offsets` says, or one after another.

    One number for several tensors is where the first of them begins.
    """
    named = list(_named(tensors))
    if offsets is None or isinstance(offsets, int):
        begins = _in_a_row((nbytes(tensor) for _, tensor in named), offsets or 0)
    else:
        begins = _given(tensors, offsets)
    found: list[Place] = []
    for (name, tensor), begin in zip(named, begins, strict=True):
        check(name, tensor, begin)
        if nbytes(tensor) > 0:
            found.append((begin, nbytes(tensor), tensor.detach()))
    return found


def by_device(wanted: Iterable[Place]) -> list[list[Place]]:
    """The same in groups: one call of an engine has all its memory on one device."""
    groups: dict[Any, list[Place]] = {}
    for place in wanted:
        groups.setdefault(getattr(place[2], "device", None), []).append(place)
    return list(groups.values())


def nbytes(tensor: torch.Tensor) -> int:
    """How many bytes a tensor's elements have."""
    return int(tensor.numel() * tensor.element_size())


def _named(tensors: Tensors) -> Iterable[tuple[str, torch.Tensor]]:
    if isinstance(tensors, torch.Tensor):
        return [("the tensor", tensors)]
    if isinstance(tensors, Mapping):
        return [(f"tensor `{name}`", tensor) for name, tensor in tensors.items()]
    return [(f"tensor {number}", tensor) for number, tensor in enumerate(tensors)]


def _in_a_row(lengths: Iterable[int], first: int) -> list[int]:
    begins = []
    for length in lengths:
        begins.append(first)
        first += length
    return begins


def _given(tensors: Tensors, offsets: Sequence[int] | Mapping[str, int]) -> list[int]:
    if isinstance(tensors, Mapping):
        if not isinstance(offsets, Mapping):
            raise TypeError("the tensors are given by name: give `offsets` by the same names")
        if missing := [name for name in tensors if name not in offsets]:
            raise ValueError(f"`offsets` does not say where tensor `{missing[0]}` begins")
        return [offsets[name] for name in tensors]
    if isinstance(offsets, Mapping):
        raise TypeError("`offsets` is given by name, and the tensors are not")
    count = 1 if isinstance(tensors, torch.Tensor) else len(tensors)
    if len(offsets) != count:
        raise ValueError(f"`offsets` has {len(offsets)} numbers for {count} tensors")
    return list(offsets)


def check(name: str, tensor: torch.Tensor, begin: int) -> None:
    """Refuses what the engine would refuse too, which does not know the tensor's name."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a `{type(tensor).__name__}`, and no tensor of torch")
    if begin < 0:
        raise ValueError(f"{name} would begin at {begin}: an offset counts from the file's start")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"{name} is sparse or quantized: its elements alone do not make it up")
    if not tensor.is_contiguous():
        raise ValueError(
            f"the elements of {name} do not lie in one piece in their order: give its "
            "`.contiguous()`, and where it is read into, copy back from that"
        )
