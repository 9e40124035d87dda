"""Layers of tensors that come to a GPU ahead of the compute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch  # type: ignore[import-not-found,unused-ignore]

import forebay.stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay import File


class TensorAt(NamedTuple):
    """A tensor's bytes in a file."""

    file: File
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        count = 1
        for length in self.shape:
            count *= length
        return count * int(self.dtype.itemsize)


class Layer(forebay.stream.Layer):
    """A layer on the GPU, as tensors."""

    _stream: LayerStream

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Its tensors by their names, valid until the next layer is taken, unless it is kept."""
        memory = torch.from_dlpack(self.memory)
        first = self._taken.first_part
        described = self._stream._described[self.index][first:]
        return {
            name: _view(memory, place, tensor)
            for (name, tensor), place in zip(described, self.places, strict=False)
        }


class LayerStream(forebay.stream.LayerStream):
    """As `forebay.stream.LayerStream`, of layers that are tensors by name.

    >>> layers = [{"up": TensorAt(file, 0, torch.bfloat16, (5120, 3072))}, ...]
    >>> with LayerStream(layers, "cuda", order="training") as stream:
    ...     for layer in stream:
    ...         hidden = hidden @ layer.tensors["up"]
    """

    _layer = Layer

    def __init__(
        self,
        layers: Sequence[Mapping[str, TensorAt] | Sequence[TensorAt]],
        device: Any = "cuda",
        **options: Any,
    ) -> None:
        self._described = [_named(layer) for layer in layers]
        for layer in self._described:
            for name, tensor in layer:
                if any(length < 0 for length in tensor.shape):
                    raise ValueError(f"tensor {name!r} has the shape {tuple(tensor.shape)}")
        parts = [
            [(tensor.file, tensor.offset, tensor.nbytes) for _, tensor in layer]
            for layer in self._described
        ]
        super().__init__(parts, device, **options)


def _named(
    layer: Mapping[str, TensorAt] | Sequence[TensorAt],
) -> list[tuple[str, TensorAt]]:
    if isinstance(layer, Mapping):
        return [(name, TensorAt(*tensor)) for name, tensor in layer.items()]
    return [(str(number), TensorAt(*tensor)) for number, tensor in enumerate(layer)]


def _view(memory: torch.Tensor, place: tuple[int, int], tensor: TensorAt) -> torch.Tensor:
    start, length = place
    return memory[start : start + length].view(tensor.dtype).view(tensor.shape)
