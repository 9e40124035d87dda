"""Loads layers by Forebay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch  # type: ignore[import-not-found,unused-ignore]

import forebay
from forebay.stream import LayerStream

from ..sources import is_from_drive
from .way import Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import Model

_TOLD = (
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
        # Each source has one budget at most: no layer may come from elsewhere.
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
        self.rooms = self._stream.buffers

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
        return {name: sum(found.get(name, 0) for found in passes) for name in _TOLD}

    def close(self) -> None:
        self._stream.close()
        self._file.close()
