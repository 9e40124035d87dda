"""The methods of loading layers to the GPU, ahead of the compute."""

from __future__ import annotations

import mmap
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import Queue
from threading import Thread
from typing import Any, ClassVar

import forebay
import torch
from forebay.stream import LayerStream
from layer_file import Model
from theory import is_from_drive, plan


class Way(ABC):
    """A method of loading layers to the GPU, ahead of the compute."""

    name: ClassVar[str]
    #: The layers whose bytes are verified before the measurement.
    checked: ClassVar[str] = "every layer"
    #: Layers on the GPU at the same time.
    buffers_used: int = 2

    def __init__(self, model: Model, source: str, device: str, buffers: int) -> None:
        self.model, self.source, self.device, self.buffers = model, source, device, buffers

    @abstractmethod
    def run(
        self,
        layers: list[int],
        stream: torch.cuda.Stream,
        use: Callable[[int, torch.Tensor], None],
    ) -> None:
        """Loads the layers; ``use`` queues the work on each on ``stream``."""

    def statistics(self) -> dict[str, float]:
        """The sums of its own statistics since it was made."""
        return {}

    def forget(self) -> None:
        """Releases mappings of the file: the kernel does not evict mapped pages."""

    def close(self) -> None:
        """Releases its memory and its files."""


_SUMMED = (
    "compute_s",
    "stall_s",
    "transfer_s",
    "pinned_bytes",
    "mapped_bytes",
    "file_bytes",
    "drive_bytes",
)


class Forebay(Way):
    """A stream that gets its order pass by pass, so that a pass begins with no pending load."""

    name: ClassVar[str] = "forebay"

    def __init__(self, model: Model, source: str, device: str, buffers: int) -> None:
        super().__init__(model, source, device, buffers)
        count = 2 * model.layers
        self._file = forebay.open(model.path)
        # If not all are pinned, every other layer of each pass is.
        pinned = [layer for layer in range(count) if not is_from_drive(layer % model.layers)]
        self._listed = [*pinned, *(layer for layer in range(count) if layer not in pinned)]
        # Room for the padding of all layers, but never for one more layer.
        each = model.nbytes + min(1 << 20, model.nbytes // count)
        whole = count * each
        # The other budgets are 0, so that every layer comes from this source.
        budgets: dict[str, Any] = {
            "gpu_budget": buffers * model.nbytes,
            "host_budget": {"pinned": whole, "half": len(pinned) * each}.get(source, 0),
            "mapped_budget": None if source == "page-cache" else 0,
        }
        self._stream = LayerStream(
            [[(self._file, model.offset(layer), model.nbytes)] for layer in self._listed],
            device,
            order="appended",
            stream=0,
            **budgets,
        )
        self.buffers_used = self._stream.buffers

    def run(
        self,
        layers: list[int],
        stream: torch.cuda.Stream,
        use: Callable[[int, torch.Tensor], None],
    ) -> None:
        self._stream._compute = stream
        self._stream.prefetch([self._listed.index(layer) for layer in layers])
        for layer in self._stream:
            use(self._listed[layer.index], torch.from_dlpack(layer.memory))

    def statistics(self) -> dict[str, float]:
        passes = self._stream.statistics()["passes"]
        return {name: sum(found.get(name, 0) for found in passes) for name in _SUMMED}

    def close(self) -> None:
        self._stream.close()
        self._file.close()


# Pinned layers that represent all: more would take longer to make than to measure.
_LAYERS = 2


class Pinned(Way):
    """Copies of whole layers on one stream, ordered with the compute's by events."""

    name: ClassVar[str] = "two-buffers"
    checked: ClassVar[str] = f"the {_LAYERS} layers that represent all"

    def __init__(self, model: Model, source: str, device: str, buffers: int) -> None:
        super().__init__(model, source, device, buffers)
        self._held: dict[int, torch.Tensor] = {}
        with model.path.open("rb", buffering=0) as file:
            for layer in range(_LAYERS):
                held = torch.empty(model.nbytes, dtype=torch.uint8)
                _register(held)
                file.readinto(memoryview(held.numpy()))
                self._held[layer] = held
        self.copies = torch.cuda.Stream(device)
        self._buffers = [
            torch.empty(model.nbytes, dtype=torch.uint8, device=device) for _ in range(self.buffers_used)
        ]

    def layer(self, layer: int) -> int:
        """The layer whose bytes represent another's."""
        return layer % _LAYERS

    def run(
        self,
        layers: list[int],
        stream: torch.cuda.Stream,
        use: Callable[[int, torch.Tensor], None],
    ) -> None:
        freed: list[torch.cuda.Event | None] = [None] * self.buffers_used
        for layer, turn in zip(layers, plan(layers, self.buffers_used), strict=True):
            buffer, before = self._buffers[turn.buffer], freed[turn.buffer]
            if turn.read:
                with torch.cuda.stream(self.copies):
                    if before is not None:
                        self.copies.wait_event(before)
                    buffer.copy_(self._held[self.layer(layer)], non_blocking=True)
                    done = self.copies.record_event()
                stream.wait_event(done)
            use(self.layer(layer), buffer)
            freed[turn.buffer] = stream.record_event()

    def transfer(self, layers: list[int]) -> None:
        """The copies alone."""
        for turn, layer in enumerate(layers):
            with torch.cuda.stream(self.copies):
                held = self._held[self.layer(layer)]
                self._buffers[turn % 2].copy_(held, non_blocking=True)

    def close(self) -> None:
        torch.cuda.synchronize()
        for held in self._held.values():
            torch.cuda.cudart().cudaHostUnregister(held.data_ptr())


def _register(memory: torch.Tensor) -> None:
    memory.fill_(0)
    torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0)


class MappedFile(Way):
    """A thread copies from the mapping to pinned memory while the layer before it is computed."""

    name: ClassVar[str] = "mmap"

    def __init__(self, model: Model, source: str, device: str, buffers: int) -> None:
        super().__init__(model, source, device, buffers)
        with model.path.open("rb") as file:
            self._mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the mapping is read-only
            self._file = torch.frombuffer(self._mapping, dtype=torch.uint8)
        self._pinned = [
            torch.empty(model.nbytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)
        ]
        self._copies = torch.cuda.Stream(device)
        self._buffers = [
            torch.empty(model.nbytes, dtype=torch.uint8, device=device) for _ in range(self.buffers_used)
        ]

    def run(
        self,
        layers: list[int],
        stream: torch.cuda.Stream,
        use: Callable[[int, torch.Tensor], None],
    ) -> None:
        planned = plan(layers, self.buffers_used)
        reads = [layer for layer, turn in zip(layers, planned, strict=True) if turn.read]
        ready: Queue[int] = Queue()
        empty: Queue[torch.cuda.Event | None] = Queue()
        for _ in self._pinned:
            empty.put(None)

        def fill() -> None:
            for number, layer in enumerate(reads):
                copied = empty.get()
                if copied is not None:
                    copied.synchronize()
                start, place = self.model.offset(layer), number % len(self._pinned)
                self._pinned[place].copy_(self._file[start : start + self.model.nbytes])
                ready.put(place)

        filler = Thread(target=fill)
        filler.start()
        freed: list[torch.cuda.Event | None] = [None] * self.buffers_used
        for layer, turn in zip(layers, planned, strict=True):
            if turn.read:
                place, before = ready.get(), freed[turn.buffer]
                with torch.cuda.stream(self._copies):
                    if before is not None:
                        self._copies.wait_event(before)
                    self._buffers[turn.buffer].copy_(self._pinned[place], non_blocking=True)
                    done = self._copies.record_event()
                empty.put(done)
                stream.wait_event(done)
            use(layer, self._buffers[turn.buffer])
            freed[turn.buffer] = stream.record_event()
        filler.join()

    def forget(self) -> None:
        self._mapping.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        del self._file, self._mapping


ALL: list[type[Way]] = [Forebay, Pinned, MappedFile]
