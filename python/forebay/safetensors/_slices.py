"""Parts of tensors: the bytes of a file for an index or a share."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias

from .._errors import shortened
from ._header import BITS

if TYPE_CHECKING:
    from ._header import Stored

Share: TypeAlias = tuple[int, int, int]
"""A dimension, the number of one of its equal parts, and how many: ``(0, rank, size)``."""

Index: TypeAlias = int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]
"""The index of ``tensor[...]``; slices have no step."""

Shard: TypeAlias = Share | Callable[[str, tuple[int, ...]], Share | tuple[slice, ...] | None] | None
"""A share of every tensor, or a function of a name and a shape; ``None`` is the whole tensor."""


def of_shard(shard: Shard, stored: Stored) -> Index:
    """The index of a tensor's part."""
    wanted: Any = shard(stored.name, stored.shape) if callable(shard) else shard
    if wanted is None:
        return ...
    if any(isinstance(part, slice) for part in wanted):
        return tuple(wanted)
    name, shape = shortened(stored.name), stored.shape
    try:
        dimension, rank, size = map(operator.index, wanted)
    except (TypeError, ValueError):
        raise ValueError(
            f"`shard` of the tensor `{name}` cannot be `{wanted}`: it takes a dimension, a rank, "
            "and the number of ranks"
        ) from None
    if not -len(shape) <= dimension < len(shape):
        raise ValueError(
            f"the tensor `{name}` has no dimension {dimension}: give `shard` as a function that "
            "returns `None` for it"
        )
    length = shape[dimension]
    if not 0 <= rank < size or length % size:
        raise ValueError(
            f"the tensor `{name}` has no part {rank} of {size}: its dimension {dimension} has "
            f"{length} elements"
        )
    own = length // size
    before = (slice(None),) * (dimension % len(shape))
    return (*before, slice(rank * own, (rank + 1) * own))


def _full(index: Index, stored: Stored) -> list[Any]:
    """The index with a number or a slice for each dimension."""
    given: Sequence[Any] = index if isinstance(index, tuple) else (index,)
    name, shape = shortened(stored.name), stored.shape
    missing = len(shape) - sum(part is not ... for part in given)
    if missing < 0 or sum(part is ... for part in given) > 1:
        text = f"the tensor `{name}` has {len(shape)} dimensions, which `{index}` does not fit"
        raise IndexError(text)
    full: list[Any] = []
    for part in given:
        full += [slice(None)] * missing if part is ... else [part]
    return full + [slice(None)] * (len(shape) - len(full))


def kept_dimensions(index: Index, stored: Stored) -> list[bool]:
    """Whether a part has each dimension of its tensor: a number in an index removes one."""
    return [isinstance(part, slice) for part in _full(index, stored)]


def bounds(
    index: Index, stored: Stored
) -> tuple[list[tuple[int, int]] | None, tuple[int, ...]]:
    """Start and end of the part in each dimension, and the shape of the part.

    The bounds are ``None`` for ``...``, the whole tensor.
    """
    if index is ...:
        return None, stored.shape
    name, shape = shortened(stored.name), stored.shape
    found: list[tuple[int, int]] = []
    left: list[int] = []
    for part, size in zip(_full(index, stored), shape, strict=True):
        if isinstance(part, slice):
            start, stop, step = part.indices(size)
            if step != 1:
                raise IndexError(f"a slice of the tensor `{name}` cannot have the step {step}")
            found.append((start, max(start, stop)))
            left.append(max(stop - start, 0))
            continue
        at = operator.index(part)
        if not -size <= at < size:
            raise IndexError(f"the tensor `{name}` has no element {at} in a dimension of {size}")
        found.append((at % size, at % size + 1))
    return found, tuple(left)


def is_range(index: Any) -> bool:
    """Whether an index has only whole numbers, slices without a step, and ``...``."""

    def fits(part: Any) -> bool:
        if isinstance(part, slice):
            return part.step in (None, 1)
        # `True` and arrays are masks or lists.
        is_number = hasattr(part, "__index__") and getattr(part, "shape", ()) == ()
        return part is ... or is_number and not isinstance(part, bool)

    return all(map(fits, index if isinstance(index, tuple) else (index,)))


def runs(stored: Stored, wanted: list[tuple[int, int]]) -> tuple[int, int, list[tuple[int, int]]]:
    """The offset of the first run, the length of a run, and how runs repeat.

    A repetition is a count and the bytes from one run to the next, the outermost first.
    """
    run = BITS[stored.dtype]
    first, stride, is_whole = 0, 0, True
    repeats: list[tuple[int, int]] = []
    for (start, stop), size in zip(reversed(wanted), reversed(stored.shape), strict=True):
        if is_whole:
            step = run
            first += start * step
            is_whole = (start, stop) == (0, size)
            run, stride = (stop - start) * step, size * step
        else:
            first += start * stride
            repeats.append((stop - start, stride))
            stride *= size
    repeats = [(count, step) for count, step in reversed(repeats) if count != 1]
    if run % 8 or first % 8 or any(step % 8 for _, step in repeats):
        raise ValueError(
            f"a part of the tensor `{shortened(stored.name)}` would begin within a byte: an element of "
            f"`{stored.dtype}` has {BITS[stored.dtype]} bits"
        )
    return first // 8, run // 8, [(count, step // 8) for count, step in repeats]
