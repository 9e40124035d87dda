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

# Expected values of budgets, offsets and lengths.
BYTES = "a whole number of bytes, from 0 to 2**64 - 1"

_ORDERS = "`forward`, `backward`, `training`, `appended`, or a list of layer numbers"

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
    """Streams of the compiled part, in the order of ``devices``."""
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


# The options of a stream that a group of streams accepts too.
_OPTIONS = frozenset(opened.__kwdefaults__ or ())


def listed(layers: Iterable[Iterable[Part]]) -> list[Iterable[Part]]:
    """The layers as a list."""
    found = None if isinstance(layers, str | bytes) else _items(layers)
    if found is None:
        raise _wrong("layers", layers, _LAYERS)
    return found


def several(devices: Iterable[Device]) -> list[Device]:
    """The devices of a group as a list; the name of a single one is refused."""
    found = None if isinstance(devices, str | bytes) else _items(devices)
    if found is None:
        raise _wrong("devices", devices, "a list of GPUs, such as `cuda:0` and `cuda:1`")
    return found


def callable_or_none(progress: T) -> T:
    """Refuses a ``progress`` that is not callable; ``None`` is allowed."""
    if progress is None or callable(progress):
        return progress
    raise _wrong("progress", progress, "a callable that takes a layer")


def check_options(options: Mapping[str, Any]) -> None:
    """Refuses options that a group of streams does not accept."""
    if unknown := sorted(options.keys() - _OPTIONS):
        one = ": give `streams`, one for each GPU" if unknown == ["stream"] else ""
        raise TypeError(f"a group of streams takes no `{_errors.shown(unknown[0])}`{one}")


def one_for_each(streams: Sequence[Stream] | None, devices: int) -> list[Stream]:
    """The compute stream of each GPU."""
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
        raise _wrong("names", names, "a list of strings, one for each layer")
    if len(found) != layers:
        text = f"{_counted(len(found), 'name')} for {_counted(layers, 'layer')}"
        raise _errors.refused(f"`names` cannot be `{text}`: it takes one for each")
    return found


def _items(several: Any) -> list[Any] | None:
    """The items of an iterable; ``None`` for other values."""
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
    """The parts of a layer, with checked offsets and lengths."""
    found = _items(parts)
    if found is None:
        raise _wrong("layers", parts, f"{_LAYERS}, and `{name}` is not a list")
    described = []
    for number, part in enumerate(found):
        three = _items(part)
        if three is None or len(three) != 3 or not isinstance(three[0], File):
            raise _wrong("layers", part, f"{_LAYERS}; see part {number} of `{name}`")
        file, offset, length = three
        offset = _count(f"offset of part {number} of {name}", offset, BYTES)
        length = _count(f"length of part {number} of {name}", length, BYTES)
        described.append((file, offset, length))
    return described


def _order(order: Order, layers: int) -> str | list[int]:
    """An order as a name, or as a list of layer numbers."""
    if isinstance(order, str):
        return order
    listed = None if isinstance(order, bytes) else _items(order)
    if listed is None:
        raise _wrong("order", order, _ORDERS)
    expected = f"numbers of the {layers} layers, from 0"
    return [whole("order", number, expected, shown="a list with {}") for number in listed]


def numbers(layers: Any, expected: str) -> Iterable[SupportsIndex]:
    """The layer numbers of one number or of an iterable."""
    try:
        # First, because an array without dimensions is a number, although it has `__iter__`.
        return [operator.index(layers)]
    except TypeError:
        pass
    try:
        several: Iterator[SupportsIndex] = iter(layers)
        return several
    except TypeError:
        raise TypeError(f"`prefetch` cannot be `{layers!r}`: it takes {expected}") from None


def _given(name: str, value: SupportsIndex | None, expected: str) -> int | None:
    """An optional number that is not negative."""
    return None if value is None else _count(name, value, expected)


def _count(name: str, value: SupportsIndex, expected: str) -> int:
    """A number that is not negative, and not a `bool`."""
    if isinstance(value, bool):
        raise _wrong(name, value, expected)
    return whole(name, value, expected)


def whole(name: str, value: SupportsIndex, expected: str, *, shown: str = "{}") -> int:
    """A whole number from 0 to 2**64 - 1."""
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
    except ValueError:  # more digits than Python prints
        text = f"a number of {number.bit_length()} bits"
    raise _errors.refused(f"`{name}` cannot be `{shown.format(text)}`: it takes {expected}")
