"""Loads layers as most programs do: from a mapped file to pinned memory to the GPU."""

from __future__ import annotations

import mmap
import warnings
from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING, ClassVar

import torch  # type: ignore[import-not-found,unused-ignore]

from ..theory import plan
from .way import Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import Model


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
            torch.empty(model.nbytes, dtype=torch.uint8, device=device) for _ in range(self.rooms)
        ]

    def run(
        self,
        layers: list[int],
        stream: torch.cuda.Stream,
        use: Callable[[int, torch.Tensor], None],
    ) -> None:
        planned = plan(layers, self.rooms)
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
        freed: list[torch.cuda.Event | None] = [None] * self.rooms
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
