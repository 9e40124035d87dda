"""Checks the arguments of layer streams; errors name the argument."""

from __future__ import annotations

import operator
import reprlib
from typing import TYPE_CHECKING, Any, TypeVar

from . import _errors
from ._forebay import File
from ._forebay import LayerStream as _LayerStream
from ._process import default_engine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import SupportsIndex

    from ._forebay import Engine
    from ._types import Device, Stream

    Part = tuple[File, SupportsIndex, SupportsIndex]
    Order = str | Sequence[SupportsIndex]

T = TypeVar("T")

# What budgets and parts of files take.
BYTES = "a whole number of bytes, from 0 to 2**64 - 1"

_ORDERS = "`forward`, `backward`, `training`, `told`, or a list of layers' numbers"

_LAYERS = "a list of layers, each a list of `(file, offset, length)`"


def opened(
    layers: Sequence[Iterable[Part]],
    devices: list[Device],
    *,
    order: Order = "forward",
    passes: SupportsIndex | None = None,
    gpu_budget: SupportsIndex | None = None,
    host_budget: SupportsIndex = 0,
    mapped_budget: SupportsIndex | None = None,
    check: bool = False,
    names: Sequence[str] | None = None,
    engine: Engine | None = None,
) -> list[_LayerStream]:
    """Streams of the engine's own, one to each of ``devices``."""
    names = _names(names, len(layers))
    return _LayerStream.group(
        engine or default_engine(),
        devices,
        [(name, _parts(name, parts)) for name, parts in zip(names, layers, strict=True)],
        order=_order(order, len(layers)),
        passes=_given("passes", passes, "a whole number of loops, from 0 to 2**64 - 1"),
        gpu_budget=_given("gpu_budget", gpu_budget, BYTES),
        host_budget=_count("host_budget", host_budget, BYTES),
        mapped_budget=_given("mapped_budget", mapped_budget, BYTES),
        check=check,
    )


# What a group of streams takes as one stream does.
_OPTIONS = frozenset(opened.__kwdefaults__ or ())


def listed(layers: Iterable[Iterable[Part]]) -> list[Iterable[Part]]:
    """The layers, however they are given."""
    found = None if isinstance(layers, str | bytes) else _items(layers)
    if found is None:
        raise _wrong("layers", layers, _LAYERS)
    return found


def several(devices: Iterable[Device]) -> list[Device]:
    """GPUs, of which one is none."""
    found = None if isinstance(devices, str | bytes) else _items(devices)
    if found is None:
        raise _wrong("devices", devices, "a list of GPUs, as `cuda:0` and `cuda:1`")
    return found


def callable_or_none(progress: T) -> T:
    """The callable that gets each layer, if there is one."""
    if progress is None or callable(progress):
        return progress
    raise _wrong("progress", progress, "what can be called with a layer")


def check_options(options: Mapping[str, Any]) -> None:
    """Refuses what a group of streams does not take."""
    if unknown := sorted(options.keys() - _OPTIONS):
        one = ": give `streams`, one for each GPU" if unknown == ["stream"] else ""
        raise TypeError(f"a group of streams takes no `{_errors.shown(unknown[0])}`{one}")


def one_for_each(streams: Sequence[Stream] | None, devices: int) -> list[Stream]:
    """The compute's stream on each GPU."""
    computes = ["current"] * devices if streams is None else _items(streams)
    if computes is None:
        raise _wrong("streams", streams, "a list of streams, one for each GPU")
    if len(computes) != devices:
        text = f"{_counted(len(computes), 'stream')} for {_counted(devices, 'GPU')}"
        raise _errors.refused(f"`streams` cannot be `{text}`: it takes one for each")
    return computes


def _names(names: Sequence[str] | None, layers: int) -> list[str]:
    if names is None:
        return [f"layer {number}" for number in range(layers)]
    found = None if isinstance(names, str) else _items(names)
    if found is None or not all(isinstance(name, str) for name in found):
        raise _wrong("names", names, "a list of texts, one for each layer")
    if len(found) != layers:
        text = f"{_counted(len(found), 'name')} for {_counted(layers, 'layer')}"
        raise _errors.refused(f"`names` cannot be `{text}`: it takes one for each")
    return found


def _items(several: Any) -> list[Any] | None:
    """The items of a value, if it has items."""
    try:
        return list(several)
    except TypeError:
        return None


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _wrong(name: str, value: object, expected: str) -> TypeError:
    text = value if isinstance(value, str) else reprlib.repr(value)
    return TypeError(_errors.shown(f"`{name}` cannot be `{text}`: it takes {expected}"))


def _parts(name: str, parts: Iterable[Part]) -> list[tuple[File, int, int]]:
    """A layer's parts, whose offsets and lengths are numbers from zero up."""
    found = _items(parts)
    if found is None:
        raise _wrong("layers", parts, f"{_LAYERS}, and `{name}` is none")
    described = []
    for number, part in enumerate(found):
        three = _items(part)
        if three is None or len(three) != 3 or not isinstance(three[0], File):
            raise _wrong("layers", part, f"{_LAYERS}, and part {number} of `{name}` is none")
        file, offset, length = three
        offset = _count(f"offset of part {number} of {name}", offset, BYTES)
        length = _count(f"length of part {number} of {name}", length, BYTES)
        described.append((file, offset, length))
    return described


def _order(order: Order, layers: int) -> str | list[int]:
    """An order by its name, or as numbers from zero up."""
    if isinstance(order, str):
        return order
    listed = None if isinstance(order, bytes) else _items(order)
    if listed is None:
        raise _wrong("order", order, _ORDERS)
    expected = f"numbers of the {layers} layers, from 0"
    return [whole("order", number, expected, shown="a list with {}") for number in listed]


def numbers(layers: Any, expected: str) -> Iterable[SupportsIndex]:
    """One number, or several."""
    try:
        # Asked first: an array without dimensions is a number, though it has `__iter__` as well.
        return [operator.index(layers)]
    except TypeError:
        pass
    try:
        several: Iterator[SupportsIndex] = iter(layers)
        return several
    except TypeError:
        raise TypeError(f"`prefetch` cannot be `{layers!r}`: it takes {expected}") from None


def _given(name: str, value: SupportsIndex | None, expected: str) -> int | None:
    """An option that is a number from zero up, if it is given."""
    return None if value is None else _count(name, value, expected)


def _count(name: str, value: SupportsIndex, expected: str) -> int:
    """A number from zero up, which a truth value is not."""
    if isinstance(value, bool):
        raise _wrong(name, value, expected)
    return whole(name, value, expected)


def whole(name: str, value: SupportsIndex, expected: str, *, shown: str = "{}") -> int:
    """A number from zero up that an engine can hold."""
    try:
        number = operator.index(value)
    except TypeError as error:
        text = shown.format(repr(value))
        refused = _errors.shown(f"`{name}` cannot be `{text}`: it takes {expected}")
        raise TypeError(refused) from error
    if 0 <= number < 1 << 64:
        return number
    try:
        text = str(number)
    except ValueError:  # more digits than Python writes
        text = f"a number of {number.bit_length()} bits"
    raise _errors.refused(f"`{name}` cannot be `{shown.format(text)}`: it takes {expected}")
