"""The places of tensors in a file: by name or by number, each with its offset."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch  # type: ignore[import-not-found,unused-ignore]

from .._arguments import whole
from .._errors import refused, shown
from .._types import Place

Tensors: TypeAlias = torch.Tensor | Sequence[torch.Tensor] | Mapping[str, torch.Tensor]
"""One tensor, several, or several by name."""

Offsets: TypeAlias = int | Sequence[int] | Mapping[str, int]
"""The offset of each in the file, in the form of the tensors."""


def places(tensors: Tensors, offsets: Offsets | None) -> list[Place]:
    """Places of all tensors with bytes: at their offsets, or without gaps.

    A single number for several tensors is the offset of the first.
    """
    if not isinstance(tensors, torch.Tensor | Mapping):
        tensors = listed("tensors", tensors)
    named = list(_named(tensors))
    for name, tensor in named:
        check(name, tensor)
    first = 0 if offsets is None else _number(offsets)
    if first is None:
        begins = _given(tensors, offsets)
    else:
        begins = _in_a_row((nbytes(tensor) for _, tensor in named), first)
    found: list[Place] = []
    for (name, tensor), begin in zip(named, begins, strict=True):
        if begin < 0:
            raise ValueError(f"the offset of {name} cannot be negative: {begin}")
        if nbytes(tensor) > 0:
            found.append((begin, nbytes(tensor), tensor.detach()))
    return found


def nbytes(tensor: torch.Tensor) -> int:
    """The bytes of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


def listed(name: str, values: Any) -> list[Any]:
    """The items of a sequence."""
    try:
        return list(values)
    except TypeError:
        kind = type(values).__name__
        raise TypeError(f"`{name}` cannot be `{kind}`: give tensors of torch") from None


def shape_of(name: str, shape: Any) -> tuple[int, ...]:
    """A shape whose lengths are numbers of any library, or a single such number."""
    one = _number(shape)
    try:
        lengths = [shape] if one is not None else list(shape)
    except TypeError:
        raise TypeError(f"`{name}` cannot be `{shape}`: it takes whole numbers") from None
    found = tuple(whole(name, length, "whole numbers from 0") for length in lengths)
    if math.prod(max(length, 1) for length in found) >= 1 << 63:
        raise refused(f"`{name}` cannot be `{list(found)}`: that is 2**63 elements or more")
    return found


def dtype_of(dtype: Any) -> torch.dtype:
    """A type of torch; types of other libraries are refused."""
    if isinstance(dtype, torch.dtype):
        return dtype
    text = f"`dtype` cannot be `{dtype!r}`: it takes a type of torch, such as `torch.float32`"
    raise TypeError(text)


def _number(value: Any) -> int | None:
    """A whole number of any library; `None` for other values, such as an array."""
    if getattr(value, "ndim", 0) != 0:
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _named(tensors: Tensors) -> Iterable[tuple[str, torch.Tensor]]:
    if isinstance(tensors, torch.Tensor):
        return [("the tensor", tensors)]
    if isinstance(tensors, Mapping):
        return [(f"tensor `{shown(name)}`", tensor) for name, tensor in tensors.items()]
    return [(f"tensor {number}", tensor) for number, tensor in enumerate(tensors)]


def _in_a_row(lengths: Iterable[int], first: int) -> list[int]:
    begins = []
    for length in lengths:
        begins.append(first)
        first += length
    return begins


def _given(tensors: Tensors, offsets: Any) -> list[int]:
    if isinstance(tensors, Mapping):
        if not isinstance(offsets, Mapping):
            raise TypeError("the tensors are given by name: give `offsets` by the same names")
        if missing := [name for name in tensors if name not in offsets]:
            raise ValueError(f"`offsets` has no number for tensor `{shown(missing[0])}`")
        return [_index(offsets[name]) for name in tensors]
    if isinstance(offsets, Mapping):
        raise TypeError("`offsets` is given by name, but the tensors are not")
    count = 1 if isinstance(tensors, torch.Tensor) else len(tensors)
    try:
        found = [_index(offset) for offset in offsets]
    except TypeError as error:
        text = f"`offsets` takes a whole number, or one for each tensor: {error}"
        raise TypeError(text) from None
    if len(found) != count:
        raise ValueError(f"`offsets` has {len(found)} numbers for {count} tensors")
    return found


def _index(offset: Any) -> int:
    return operator.index(offset)


def check(name: str, tensor: torch.Tensor) -> None:
    """Refuses tensors that the engine would refuse, with an error that names the tensor."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is of type `{type(tensor).__name__}`, not a tensor of torch")
    if tensor.layout != torch.strided:
        raise ValueError(
            f"{name} is sparse: give its `.to_dense()`, or its `.indices()` and `.values()`"
        )
    if tensor.is_quantized:
        raise ValueError(
            f"{name} is quantized: give its `.int_repr()`, and keep scale and zero point"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise ValueError(
            f"{name} is a view of conjugates or negatives: give its "
            "`.resolve_conj().resolve_neg()`"
        )
    if tensor.device.type == "meta":
        raise ValueError(f"{name} is on `meta`, so it has no bytes: give one on `cuda` or `cpu`")
    if not tensor.is_contiguous():
        raise ValueError(
            f"{name} is not contiguous: give its `.contiguous()`, and copy a target back from that"
        )
