"""Layers in pinned memory, two buffers on the GPU: the limit of the link."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch  # type: ignore[import-not-found,unused-ignore]

from ..theory import plan
from .way import Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import Model

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
            torch.empty(model.nbytes, dtype=torch.uint8, device=device) for _ in range(self.rooms)
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
        freed: list[torch.cuda.Event | None] = [None] * self.rooms
        for layer, turn in zip(layers, plan(layers, self.rooms), strict=True):
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
