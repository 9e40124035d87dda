"""Layers as most programs bring them: a mapped file, pinned memory, the GPU."""

from __future__ import annotations

from queue import Queue
from threading import Thread
from typing import TYPE_CHECKING, ClassVar

import torch  # type: ignore[import-not-found,unused-ignore]

from .way import Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import Model


class MappedFile(Way):
    """A thread copies from the mapping to pinned memory while the layer before it is computed."""

    name: ClassVar[str] = "mmap"

    def __init__(self, model: Model, source: str, device: str, buffers: int) -> None:
        super().__init__(model, source, device, buffers)
        size = 2 * model.layers * model.nbytes
        self._file = torch.from_file(str(model.path), size=size, dtype=torch.uint8)
        self._pinned = [
            torch.empty(model.nbytes, dtype=torch.uint8, pin_memory=True) for _ in range(2)
        ]
        self._copies = torch.cuda.Stream(device)
        self._buffers = [
            torch.empty(model.nbytes, dtype=torch.uint8, device=device) for _ in range(2)
        ]

    def run(
        self,
        layers: list[int],
        stream: torch.cuda.Stream,
        use: Callable[[int, torch.Tensor], None],
    ) -> None:
        ready: Queue[int] = Queue()
        empty: Queue[torch.cuda.Event | None] = Queue()
        empty.put(None)
        empty.put(None)

        def fill() -> None:
            for turn, layer in enumerate(layers):
                copied = empty.get()
                if copied is not None:
                    copied.synchronize()
                start = self.model.offset(layer)
                self._pinned[turn % 2].copy_(self._file[start : start + self.model.nbytes])
                ready.put(turn)

        filler = Thread(target=fill)
        filler.start()
        freed: list[torch.cuda.Event | None] = [None, None]
        for turn, layer in enumerate(layers):
            ready.get()
            before = freed[turn % 2]
            with torch.cuda.stream(self._copies):
                if before is not None:
                    self._copies.wait_event(before)
                self._buffers[turn % 2].copy_(self._pinned[turn % 2], non_blocking=True)
                done = self._copies.record_event()
            empty.put(done)
            stream.wait_event(done)
            use(layer, self._buffers[turn % 2])
            freed[turn % 2] = stream.record_event()
        filler.join()
