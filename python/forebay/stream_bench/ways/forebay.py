"""Layers by Forebay."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch  # type: ignore[import-not-found,unused-ignore]

import forebay
from forebay.stream import LayerStream

from .way import Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import Model


class Forebay(Way):
    """A stream whose order is told pass by pass, so that a pass begins with nothing on its way."""

    name: ClassVar[str] = "forebay"

    def __init__(self, model: Model, source: str, device: str, buffers: int) -> None:
        super().__init__(model, source, device, buffers)
        count = 2 * model.layers
        self._file = forebay.open(model.path)
        host = count * (model.nbytes + (1 << 20)) if source == "pinned" else 0
        if source == "half":
            host = count // 2 * (model.nbytes + (1 << 20))
        self._stream = LayerStream(
            [[(self._file, model.offset(layer), model.nbytes)] for layer in range(count)],
            device,
            order="told",
            gpu_budget=buffers * model.nbytes,
            host_budget=host,
            stream=0,
        )

    def run(
        self,
        layers: list[int],
        stream: torch.cuda.Stream,
        use: Callable[[int, torch.Tensor], None],
    ) -> None:
        self._stream._compute = stream
        self._stream.prefetch(layers)
        for layer in self._stream:
            use(layer.index, torch.from_dlpack(layer.memory))

    def close(self) -> None:
        self._stream.close()
        self._file.close()
