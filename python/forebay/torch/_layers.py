"""Layers of tensors, loaded to a GPU ahead of the compute."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch  # type: ignore[import-not-found,unused-ignore]

import forebay.stream

from ._places import dtype_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Self

    from forebay import File


class TensorAt(NamedTuple):
    """A tensor's bytes in a file.

    ``length`` is their number, if it is known, for example from a checkpoint's header. A stream
    refuses a tensor whose type and shape need another number.
    """

    file: File
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    length: int | None = None

    @property
    def nbytes(self) -> int:
        """How many bytes it has."""
        return math.prod(map(operator.index, self.shape)) * int(self.dtype.itemsize)


class Layer(forebay.stream.Layer):
    """A layer on the GPU, as tensors."""

    _stream: LayerStream

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Its tensors by their names, valid until the next layer is taken, unless it is kept.

        Torch does not know the simulated GPU: of a layer there it gets a copy on the host.
        """
        if self.memory.device.startswith("sim"):
            memory = torch.frombuffer(bytearray(self.memory.tobytes()), dtype=torch.uint8)
        else:
            memory = torch.from_dlpack(self.memory)
        first = self._taken.first_part
        described = self._stream._described[self.index][first:]
        return {
            name: _view(memory, place, tensor)
            for (name, tensor), place in zip(described, self.places, strict=False)
        }


class LayerStream(forebay.stream.LayerStream):
    """`forebay.stream.LayerStream` of layers that are tensors by name.

    >>> layers = [{"up": TensorAt(file, 0, torch.bfloat16, (5120, 3072))}, ...]
    >>> with LayerStream(layers, "cuda", order="training") as stream:
    ...     for layer in stream:
    ...         hidden = hidden @ layer.tensors["up"]

    With ``"sim"`` it runs on a simulated GPU, without a real one.
    """

    _layer = Layer

    def __init__(
        self,
        layers: Sequence[Mapping[str, TensorAt] | Sequence[TensorAt]],
        device: Any = "cuda",
        **options: Any,
    ) -> None:
        self._described = _described(layers)
        super().__init__(_parts(self._described), device, **options)

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[Layer]: ...
        def __next__(self) -> Layer: ...

    @classmethod
    def group(  # type: ignore[override]
        cls,
        layers: Sequence[Mapping[str, TensorAt] | Sequence[TensorAt]],
        devices: Iterable[Any],
        **options: Any,
    ) -> list[Self]:
        """`forebay.stream.LayerStream.group` of such layers."""
        described = _described(layers)
        group = super().group(_parts(described), devices, **options)
        for stream in group:
            stream._described = described
        return group


def _described(
    layers: Sequence[Mapping[str, TensorAt] | Sequence[TensorAt]],
) -> list[list[tuple[str, TensorAt]]]:
    """The tensors of each layer, by their names."""
    described = [_named(layer) for layer in layers]
    for layer in described:
        for name, tensor in layer:
            _check(name, tensor)
    return described


def _check(name: str, tensor: TensorAt) -> None:
    if any(length < 0 for length in tensor.shape):
        raise ValueError(f"tensor {name!r} cannot have the shape {tuple(tensor.shape)}")
    if tensor.length is None:
        return
    size = int(tensor.dtype.itemsize)
    if tensor.length % size:
        raise ValueError(
            f"tensor {name!r} has {tensor.length} bytes, which is not a multiple of {size}, the "
            f"size of {tensor.dtype}"
        )
    if tensor.length != tensor.nbytes:
        raise ValueError(
            f"tensor {name!r} has {tensor.length} bytes, but the shape {tuple(tensor.shape)} of "
            f"{tensor.dtype} takes {tensor.nbytes}"
        )


def _parts(described: list[list[tuple[str, TensorAt]]]) -> list[list[tuple[File, int, int]]]:
    """The places of the tensors of each layer."""
    return [
        [(tensor.file, tensor.offset, tensor.nbytes) for _, tensor in layer]
        for layer in described
    ]


def _named(
    layer: Mapping[str, TensorAt] | Sequence[TensorAt],
) -> list[tuple[str, TensorAt]]:
    if isinstance(layer, Mapping):
        return [(name, _tensor(tensor)) for name, tensor in layer.items()]
    return [(str(number), _tensor(tensor)) for number, tensor in enumerate(layer)]


def _tensor(tensor: TensorAt) -> TensorAt:
    """A tensor with numbers of Python, which do not overflow."""
    file, offset, dtype, shape, length = TensorAt(*tensor)
    length = None if length is None else operator.index(length)
    return TensorAt(file, offset, dtype_of(dtype), tuple(map(operator.index, shape)), length)


def _view(memory: torch.Tensor, place: tuple[int, int], tensor: TensorAt) -> torch.Tensor:
    start, length = place
    return memory[start : start + length].view(tensor.dtype).view(tensor.shape)
