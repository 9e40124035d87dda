"""Layers of a model larger than the GPU's memory, each read while the one before it is computed.

>>> from forebay.stream import LayerStream
>>> with LayerStream([[(file, 0, 1 << 30)], [(file, 1 << 30, 1 << 30)]], "cuda") as layers:
...     for layer in layers:  # one pass; the next loop makes the next
...         compute(layer.memory)

A layer is valid until the next one is taken, and its memory is any library's by DLPack.
`forebay.torch.LayerStream` hands out tensors.
"""

from __future__ import annotations

import operator
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from . import _errors
from ._forebay import LayerStream as _LayerStream
from ._process import default_engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self, SupportsIndex

    from ._forebay import Buffer, Engine, File, TakenLayer
    from ._types import Device, Stream

    Part = tuple[File, SupportsIndex, SupportsIndex]
    Order = str | Sequence[SupportsIndex]

__all__ = ["Layer", "LayerStream"]

# What budgets and parts of files take.
_BYTES = "a whole number of bytes, from 0 to 2**64 - 1"


class Layer:
    """A layer on the GPU, or a slice of one: valid until the next is taken, unless it is kept."""

    def __init__(self, stream: LayerStream, taken: TakenLayer) -> None:
        self._stream, self._taken = stream, taken

    @property
    def index(self) -> int:
        """Its number in the list of layers, from 0."""
        return self._taken.layer

    @property
    def slice(self) -> int:
        """Which slice of the layer it is, from 0."""
        return self._taken.slice

    @property
    def name(self) -> str:
        """What errors and reports call it."""
        return self._taken.name

    @property
    def position(self) -> int:
        """Where it stands in the order, from 0, over all passes."""
        return self._taken.position

    @property
    def memory(self) -> Buffer:
        """All of its bytes on the GPU."""
        return self._taken.memory()

    @property
    def places(self) -> list[tuple[int, int]]:
        """Where its parts lie in its `memory`: first byte and length of each."""
        return self._taken.places

    @property
    def nbytes(self) -> int:
        """How many bytes of files it has."""
        return sum(length for _, length in self.places)

    def __len__(self) -> int:
        return len(self._taken.places)

    def __getitem__(self, part: int) -> Buffer:
        count = len(self)
        if not -count <= part < count:
            raise IndexError(f"part {part} of {count}")
        return self._taken.part(part % count)

    def __iter__(self) -> Iterator[Buffer]:
        return (self[part] for part in range(len(self)))

    def keep(self) -> Self:
        """Keeps it beyond the next one, until it is released."""
        self._taken.keep()
        return self

    def write_back(self, stream: Stream = ...) -> None:
        """Writes it to where it came from, once what is queued on ``stream`` now is done.

        That is the stream for which the layer was taken, unless another one is given. The call does
        not wait, and nothing may change the layer before it is written. It may be released before,
        and taken again it is what was written; `LayerStream.flush` waits. Its files are open for
        writing.
        """
        self._taken.write_back(*self._given(stream))

    def release(self, stream: Stream = ...) -> None:
        """Gives its memory to another layer, which waits for what is queued on ``stream`` now.

        That is the stream for which the layer was taken, unless another one is given.
        """
        self._taken.release(*self._given(stream))

    def _given(self, stream: Stream) -> list[Stream]:
        """The stream that a call is given, if it is."""
        return [] if stream is ... else [self._stream._named(stream)]

    def __repr__(self) -> str:
        return f"<forebay layer {self.name!r} at {self.position}>"


class LayerStream:
    """Layers that come to a GPU one after the other, ahead of the compute that needs them.

    A loop over it is one pass; the next loop is the next, whose first layers come meanwhile. A loop
    that was left in the middle of a pass is gone on with by the next one, unless `rewind` was
    called. Its `len` is how many layers, or slices, a pass takes. Each step releases the
    layer before it: what comes to its place waits on the GPU until what is queued on the compute's
    stream by then is done. The host waits for storage, and for slots that the GPU gives back as it
    goes on.

    ``layers`` are lists of ``(file, offset, length)``; ``names`` are what errors call them.
    ``order`` is ``"forward"``, ``"backward"``, ``"training"`` (forward and back again), a list of
    layers' numbers, or ``"told"``: `prefetch` says then what comes. ``passes`` is how many loops
    there are to be; those behind the last one are empty. ``gpu_budget`` is the bytes of
    GPU memory for layers, three by default; what is too small for two cuts each layer in slices.
    ``host_budget`` is the bytes of pinned memory for layers that would come too late otherwise,
    which is known after a pass; where the order is told, for the first that fit.
    ``mapped_budget`` is the bytes of layers in the page cache whose pages are pinned where they
    lie, when they come, so that the GPU copies them from there from then on; by default half of
    what the machine has left, once they come again, where there are passes enough to be worth it;
    0 for none.
    ``check`` fills released layers with NaNs, so that whoever uses one too long finds out; each is
    then read anew, which `placement()` does not count with. ``stream`` is the compute's: torch's
    current one, or the default stream.
    ``progress`` is called with each layer that is taken; what it raises ends the loop.

    Raises `ValueError` for a budget that is too small, a number below zero, layers without bytes,
    numbers that are no layer's, `TypeError` for another order, and what the files or the GPU say.
    """

    _layer: type[Layer] = Layer

    def __init__(
        self,
        layers: Sequence[Iterable[Part]],
        device: Device = "cuda",
        *,
        order: Order = "forward",
        passes: SupportsIndex | None = None,
        gpu_budget: SupportsIndex | None = None,
        host_budget: SupportsIndex = 0,
        mapped_budget: SupportsIndex | None = None,
        check: bool = False,
        names: Sequence[str] | None = None,
        stream: Stream = "current",
        engine: Engine | None = None,
        progress: Callable[[Layer], Any] | None = None,
    ) -> None:
        self._compute, self._progress, self._count = stream, progress, len(layers)
        [self._stream] = _opened(
            layers,
            [device],
            order=order,
            passes=passes,
            gpu_budget=gpu_budget,
            host_budget=host_budget,
            mapped_budget=mapped_budget,
            check=check,
            names=names,
            engine=engine,
        )

    @classmethod
    def group(
        cls,
        layers: Sequence[Iterable[Part]],
        devices: Iterable[Device],
        *,
        streams: Sequence[Stream] | None = None,
        progress: Callable[[Layer], Any] | None = None,
        **options: Any,
    ) -> list[Self]:
        """Streams of the same layers, one to each GPU of ``devices``, that share what is read.

        Where they are taken in step, by a thread for each GPU, or in turn by one if each GPU has a
        buffer to spare, each layer is read once for all. A stream waits for the others, as long as
        they are not far behind, for a quarter of a second at most; whoever is later has the layer
        read again. ``streams`` are the computes' own, one for each GPU: torch's current ones, or
        the default streams. ``options`` are those of one stream; ``host_budget`` and
        ``mapped_budget`` are for all together. Each is closed by itself. Layers are not written
        back.
        """
        devices = list(devices)
        computes = ["current"] * len(devices) if streams is None else list(streams)
        if len(computes) != len(devices):
            raise ValueError(f"{len(computes)} streams for {len(devices)} GPUs")
        group = []
        for raw, compute in zip(_opened(layers, devices, **options), computes, strict=True):
            made = cls.__new__(cls)
            made._compute, made._progress, made._count = compute, progress, len(layers)
            made._stream = raw
            group.append(made)
        return group

    @property
    def device(self) -> str:
        """The GPU that its layers come to: ``"cuda:0"``."""
        return self._stream.device

    @property
    def slices(self) -> int:
        """In how many slices each layer comes: one, unless two layers are more than the budget."""
        return self._stream.slices

    @property
    def buffers(self) -> int:
        """How many layers, or slices, the GPU has room for at once."""
        return self._stream.buffers

    def __iter__(self) -> Iterator[Layer]:
        self._stream.begin_pass()
        return self

    def __next__(self) -> Layer:
        taken = self._stream.take(self._named(self._compute))
        if taken is None:
            raise StopIteration
        layer = self._layer(self, taken)
        if self._progress is not None:
            self._progress(layer)
        return layer

    def __len__(self) -> int:
        """How many layers, or slices, a loop over it takes from its first one on."""
        count = self._stream.pass_len()
        if count is None:
            raise TypeError("a stream whose order is told has no length")
        return count

    def __bool__(self) -> bool:
        return True

    def rewind(self) -> None:
        """Begins again at the first layer; a pass that was left in its middle is made again."""
        self._stream.rewind()

    def prefetch(self, layers: SupportsIndex | Iterable[SupportsIndex]) -> None:
        """Tells which layers are taken next, behind all that were told before.

        That is one layer's number, or several; they may be numpy's or torch's.
        """
        expected = f"numbers of the {self._count} layers, from 0"
        told = [_whole("prefetch", number, expected) for number in _numbers(layers, expected)]
        self._stream.prefetch(told)

    def statistics(self) -> dict[str, Any]:
        """What layers and passes took so far.

        ``layers`` and ``passes``, in seconds of the GPU's clock and bytes: of ``file_bytes``, which
        came from files by way of slots, ``drive_bytes`` were not found in the page cache.
        ``routes``, of each layer, each pass, and all together: the same bytes by route and reason.
        ``written_bytes``: of layers that were written back.
        """
        return self._stream.statistics()

    def flush(self) -> None:
        """Waits until all layers are written whose `Layer.write_back` was called.

        Raises what went wrong with one of them; called again, with the next. Durable they are once
        their files are synced.
        """
        self._stream.flush()

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes what layers took as a trace that https://ui.perfetto.dev opens."""
        with open(path, "wb") as file:
            file.write(self._stream.trace())

    def mapped(self) -> tuple[int, str | None]:
        """Bytes of layers that are pinned where they lie, and why others, if any, are not."""
        return self._stream.mapped()

    def placement(self) -> dict[str, Any] | None:
        """Where the layers are kept since the first pass was seen, and how long a pass is to take.

        ``tiers`` says so layer by layer (slice by slice where they come so), ``ceiling`` what binds, and ``more_gpu`` and ``more_host``
        how many more bytes would hide what is read, each with the seconds of a pass then. Times are
        of the next pass, and each call tells them anew, by the last one that the GPU is done with
        and that began once layers were where they are kept. Nothing is placed anew: 0 more bytes
        are told where what is left of the budget would do.
        ``short`` says why fewer layers are pinned than was planned, where that is so; the times are
        of those that are. ``None``: nothing is planned, or not yet; `unplanned` says why.
        """
        return self._stream.placement()

    def unplanned(self) -> str | None:
        """Why there is no `placement`, or none yet; ``None`` where there is one."""
        return self._stream.unplanned()

    def close(self) -> None:
        """Ends it: nothing more is read, and what is to be written back is.

        Warns of layers that somebody still has the memory of. Raises the first of what went wrong
        and was not told yet; called again, the next.
        """
        alive = self._stream.close()
        if alive:
            text = f"memory of released layers is still in use: {', '.join(alive)}"
            warnings.warn(text, ResourceWarning, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _named(self, stream: Stream) -> Stream:
        """A stream, or torch's current one on the layers' GPU where that is meant."""
        if not (isinstance(stream, str) and stream == "current"):
            return stream
        torch, device = sys.modules.get("torch"), self._stream.device
        if torch is None or not device.startswith("cuda") or not torch.cuda.is_initialized():
            return None  # the default stream
        return torch.cuda.current_stream(device)


def _opened(
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
    names = names or [f"layer {number}" for number in range(len(layers))]
    if len(names) != len(layers):
        raise ValueError(f"{len(names)} names for {len(layers)} layers")
    return _LayerStream.group(
        engine or default_engine(),
        devices,
        [(name, _parts(name, parts)) for name, parts in zip(names, layers, strict=True)],
        order=_order(order, len(layers)),
        passes=_given("passes", passes, "a whole number of loops, from 0 to 2**64 - 1"),
        gpu_budget=_given("gpu_budget", gpu_budget, _BYTES),
        host_budget=_whole("host_budget", host_budget, _BYTES),
        mapped_budget=_given("mapped_budget", mapped_budget, _BYTES),
        check=check,
    )


def _parts(name: str, parts: Iterable[Part]) -> list[tuple[File, int, int]]:
    """A layer's parts, whose offsets and lengths are numbers from zero up."""
    return [
        (
            file,
            _whole(f"offset of part {number} of {name}", offset, _BYTES),
            _whole(f"length of part {number} of {name}", length, _BYTES),
        )
        for number, (file, offset, length) in enumerate(parts)
    ]


def _order(order: Order, layers: int) -> str | list[int]:
    """An order by its name, or as numbers from zero up."""
    if isinstance(order, str):
        return order
    expected = f"numbers of the {layers} layers, from 0"
    return [_whole("order", number, expected, shown="a list with {}") for number in order]


def _numbers(layers: Any, expected: str) -> Iterable[SupportsIndex]:
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
    return None if value is None else _whole(name, value, expected)


def _whole(name: str, value: SupportsIndex, expected: str, *, shown: str = "{}") -> int:
    """A number from zero up that an engine can hold."""
    try:
        number = operator.index(value)
    except TypeError as error:
        text = shown.format(repr(value))
        raise TypeError(f"`{name}` cannot be `{text}`: it takes {expected}") from error
    if 0 <= number < 1 << 64:
        return number
    try:
        text = str(number)
    except ValueError:  # more digits than Python writes
        text = f"a number of {number.bit_length()} bits"
    raise _errors.refused(f"`{name}` cannot be `{shown.format(text)}`: it takes {expected}")
