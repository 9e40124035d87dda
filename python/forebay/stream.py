"""Layers of a model larger than GPU memory: the next layer loads during compute.

>>> from forebay.stream import LayerStream
>>> with LayerStream([[(file, 0, 1 << 30)], [(file, 1 << 30, 1 << 30)]], "cuda") as layers:
...     for layer in layers:  # one pass; the next loop makes the next
...         compute(layer.memory)

A layer is valid until the next iteration. Any library can use its memory by DLPack.
`forebay.torch.LayerStream` returns tensors.
"""

from __future__ import annotations

import operator
import os
import sys
import warnings
from typing import TYPE_CHECKING, Any

from . import _arguments, _errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType
    from typing import Self, SupportsIndex

    from ._arguments import Order, Part
    from ._forebay import Buffer, Engine, TakenLayer
    from ._types import Device, Stream

__all__ = ["Layer", "LayerStream"]


class Layer:
    """A layer on the GPU, or a slice of a layer: valid until the next iteration, unless kept."""

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
        """Its name in errors and reports."""
        return self._taken.name

    @property
    def position(self) -> int:
        """Its position in the order, from 0, over all passes."""
        return self._taken.position

    @property
    def memory(self) -> Buffer:
        """All of its bytes on the GPU."""
        return self._taken.memory()

    @property
    def places(self) -> list[tuple[int, int]]:
        """The place of each part in its `memory`: first byte and length."""
        return self._taken.places

    @property
    def nbytes(self) -> int:
        """The bytes of all its parts."""
        return sum(length for _, length in self.places)

    def __len__(self) -> int:
        return len(self._taken.places)

    def __getitem__(self, part: int) -> Buffer:
        count = len(self)
        try:
            number = operator.index(part)
        except TypeError:
            expected = f"the number of one of its {count} parts, from 0"
            raise TypeError(f"`part` cannot be `{part!r}`: it takes {expected}") from None
        if not -count <= number < count:
            raise IndexError(f"part {number} of {count}")
        return self._taken.part(number % count)

    def __iter__(self) -> Iterator[Buffer]:
        return (self[part] for part in range(len(self)))

    def keep(self) -> Self:
        """Keeps it after the next iteration, until it is released."""
        self._taken.keep()
        return self

    def write_back(self, stream: Stream = ...) -> None:
        """Writes it back to its files, after the work queued on ``stream`` now.

        Default: the stream for which the layer was taken. The call does not wait, and the layer may
        not be changed before it is written. It may be released before; if it is taken again, it
        has the written bytes. `LayerStream.flush` waits. Its files must be open for writing.
        """
        self._taken.write_back(*self._given(stream))

    def release(self, stream: Stream = ...) -> None:
        """Releases its memory for another layer, which waits for the work queued on ``stream`` now.

        Default: the stream for which the layer was taken.
        """
        self._taken.release(*self._given(stream))

    def _given(self, stream: Stream) -> list[Stream]:
        """The stream as an argument, if it was given."""
        return [] if stream is ... else [self._stream._named(stream)]

    def __repr__(self) -> str:
        return f"<forebay layer {self.name!r} at {self.position}>"


class LayerStream:
    """Loads layers to a GPU one after the other, ahead of the compute that needs them.

    A loop over it is one pass. The first layers of the next pass are loaded during this one. A loop
    that ends in the middle of a pass is continued by the next loop, unless `rewind` was called. Its
    `len` is the number of layers, or slices, in a pass. Each step releases the previous layer: the
    next contents of its memory wait on the GPU for the work queued on the compute's stream so far.
    The host waits for storage, and for slots that the GPU still copies from.

    ``layers`` are lists of ``(file, offset, length)``; ``names`` are their names in errors.
    ``order`` is ``"forward"``, ``"backward"``, ``"training"`` (forward and back again), a list of
    layer numbers, or ``"appended"``, in which `prefetch` appends to the order. ``passes`` is the
    number of loops; later ones are empty.
    ``gpu_budget`` is the bytes of GPU memory for layers. If two layers exceed it, each is cut into
    slices. The default has room for three, or for two if the GPU has no memory for three.
    ``host_budget`` is the bytes of pinned memory for layers: as many as fit are read once and
    copied from there. They are spread evenly over the order; with ``"appended"`` they are the first.
    ``mapped_budget`` is the bytes of layers in the page cache whose pages may be pinned, so that
    the GPU copies from them. With a value, pages are pinned when a layer is first loaded. By
    default they are pinned when it is loaded again, up to half of the available memory, if there
    are enough passes to pay off; 0 for none.
    ``check`` fills released layers with NaNs, which exposes a use after the release; each layer is
    then read again. ``stream`` is the compute's: by default torch's current one, or the default
    stream.
    ``progress`` is called with each layer that is taken; its exceptions end the loop.

    Raises `ValueError` for a budget that is too small, a negative number, layers without bytes,
    numbers without a layer, an empty order, another number of names than of layers, and host memory
    as ``device``; `TypeError` for another order, and for values of another type; and errors of the
    files and the GPU. `Error.layer` names the layer, if the error concerns one.
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
        layers = _arguments.listed(layers)
        self._compute, self._progress = stream, _arguments.callable_or_none(progress)
        self._count = len(layers)
        [self._stream] = _arguments.opened(
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
        """Streams of the same layers, one to each GPU of ``devices``, that share reads.

        If they advance in step, each layer is read once for all. One thread that takes from all in
        turn needs a spare buffer on each GPU for that. A stream waits for streams that are not far
        behind, for at most 0.25 s; a later one has the layer read again. ``streams`` are the
        computes' streams, one for each GPU: by default torch's current ones, or the default
        streams. ``options`` are those of one stream; ``host_budget`` and ``mapped_budget`` are for
        all together. Each is closed separately. Layers are not written back.

        Raises `TypeError` if ``devices`` is the name of one, `ValueError` for another number of
        ``streams``, and the errors of one stream.
        """
        _arguments.check_options(options)
        layers, devices = _arguments.listed(layers), _arguments.several(devices)
        progress = _arguments.callable_or_none(progress)
        computes = _arguments.one_for_each(streams, len(devices))
        group = []
        for raw, compute in zip(_arguments.opened(layers, devices, **options), computes, strict=True):
            made = cls.__new__(cls)
            made._compute, made._progress, made._count = compute, progress, len(layers)
            made._stream = raw
            group.append(made)
        return group

    @property
    def device(self) -> str:
        """The GPU of its layers: ``"cuda:0"``."""
        return self._stream.device

    @property
    def slices(self) -> int:
        """The number of slices of each layer: one, unless two layers exceed the budget."""
        return self._stream.slices

    @property
    def buffers(self) -> int:
        """How many layers, or slices, fit into the GPU memory for layers."""
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
        """The number of layers, or slices, in a whole pass."""
        count = self._stream.pass_len()
        if count is None:
            raise TypeError("a stream with the order `appended` has no length")
        return count

    def __bool__(self) -> bool:
        return True

    def rewind(self) -> None:
        """Starts again at the first layer; an unfinished pass is repeated."""
        self._stream.rewind()

    def prefetch(self, layers: SupportsIndex | Iterable[SupportsIndex]) -> None:
        """Appends layers to the order.

        ``layers`` is one number, or several; numbers of numpy and torch are accepted.
        """
        expected = f"numbers of the {self._count} layers, from 0"
        numbers = _arguments.numbers(layers, expected)
        reported = [_arguments.whole("prefetch", number, expected) for number in numbers]
        self._stream.prefetch(reported)

    def statistics(self) -> dict[str, Any]:
        """Times and bytes of the layers and passes so far.

        ``layers`` and ``passes`` are in seconds of the GPU's clock and bytes. ``file_bytes`` came
        from files through slots; ``drive_bytes`` of them were not in the page cache. ``routes``, of
        each layer, each pass, and all together: the same bytes by route and reason.
        ``written_bytes``: of layers that were written back.
        """
        return self._stream.statistics()

    def flush(self) -> None:
        """Waits until all requested `Layer.write_back` calls are done.

        Raises the error of a failed write; another call raises the next. The data is durable once
        the files are synced.
        """
        self._stream.flush()

    def write_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace of the layers for https://ui.perfetto.dev."""
        with open(path, "wb") as file:
            file.write(self._stream.trace())

    def mapped(self) -> tuple[int, str | None]:
        """Bytes of layers that are pinned in the page cache, and why others, if any, are not."""
        return self._stream.mapped()

    @property
    def tiers(self) -> list[str]:
        """Where each layer, or slice of one, is kept: ``"gpu"``, ``"pinned"`` or ``"file"``."""
        return self._stream.tiers

    def prediction(self) -> dict[str, Any] | None:
        """Predicts the time of the next pass from the last one that the GPU finished.

        ``pass_s`` is the longest of compute, copies over the link, and reads of files; ``limit``
        names it: ``"compute"``, ``"link"``, ``"page_cache"`` or ``"drive"``. ``compute_s`` is the
        compute's part. ``more_gpu`` and ``more_host`` are the bytes of GPU or pinned memory that
        would hide the rest behind the compute; ``None`` if it is hidden, and ``more_host`` also if
        the link binds. ``None`` until the second pass is over, and with the order ``"appended"``.
        """
        return self._stream.prediction()

    def close(self) -> None:
        """Closes it: loads are cancelled, pending writes are finished.

        Warns of layers whose memory is still referenced. Raises the first error that was not raised
        before; another call raises the next.
        """
        alive = self._stream.close()
        if alive:
            names = ", ".join(map(_errors.shown, alive))
            text = f"memory of released layers is still in use: {names}"
            warnings.warn(text, ResourceWarning, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _errors.close(self.close, value)

    def _named(self, stream: Stream) -> Stream:
        """The stream; for ``"current"`` torch's current one on the layers' GPU."""
        if not (isinstance(stream, str) and stream == "current"):
            return stream
        torch, device = sys.modules.get("torch"), self._stream.device
        if torch is None or not device.startswith("cuda") or not torch.cuda.is_initialized():
            return None  # the default stream
        return torch.cuda.current_stream(device)
