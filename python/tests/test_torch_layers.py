"""Layers of tensors that come to GPUs ahead of the compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forebay
import pytest
from tensors import device_or_skip, torch_or_skip

torch = torch_or_skip()

from forebay.torch import LayerStream, TensorAt  # noqa: E402  # after it is known that there is a torch

LAYERS, ROWS = 5, 256

Model = tuple[list[dict[str, TensorAt]], list[tuple[Any, Any]]]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """Layers of a matrix and a vector each, and what is in them."""
    device_or_skip("cuda")
    torch.manual_seed(3)
    path, tensors, at = tmp_path / "model", [], 0
    for _ in range(LAYERS):
        tensors.append((torch.randn(ROWS, ROWS), torch.randn(ROWS)))
    with open(path, "wb") as file:
        for pair in tensors:
            for tensor in pair:
                file.write(tensor.numpy().tobytes())
    file, layers = forebay.open(path), []
    for matrix, vector in tensors:
        up = TensorAt(file, at, torch.float32, tuple(matrix.shape))
        bias = TensorAt(file, at + up.nbytes, torch.float32, tuple(vector.shape))
        layers.append({"up": up, "bias": bias})
        at += up.nbytes + bias.nbytes
    return layers, tensors


def computed(tensors: list[tuple[Any, Any]], hidden: Any) -> Any:
    """What the layers make of `hidden`, without a stream."""
    for matrix, vector in tensors:
        hidden = torch.tanh(hidden @ matrix.to(hidden.device) + vector.to(hidden.device))
    return hidden


def test_layers_are_tensors(model: Model) -> None:
    layers, tensors = model
    begin = torch.randn(8, ROWS, device="cuda")
    expected = computed(tensors, begin)
    with torch.no_grad(), LayerStream(layers, "cuda", gpu_budget=3 << 19) as stream:
        for _ in range(3):
            hidden = begin
            for layer in stream:
                hidden = torch.tanh(hidden @ layer.tensors["up"] + layer.tensors["bias"])
            torch.testing.assert_close(hidden, expected)


def test_several_gpus_compute_with_the_same_layers(model: Model) -> None:
    layers, tensors = model
    gpus = [f"cuda:{number}" for number in range(min(torch.cuda.device_count(), 2))]
    gpus = gpus if len(gpus) == 2 else gpus * 2
    begin = [torch.randn(8, ROWS, device=gpu) for gpu in gpus]
    expected = [computed(tensors, hidden) for hidden in begin]
    group = LayerStream.group(layers, gpus, gpu_budget=3 << 19)
    with torch.no_grad():
        for _ in range(3):
            hidden = list(begin)
            for taken in zip(*group, strict=True):
                for number, layer in enumerate(taken):
                    with torch.cuda.device(gpus[number]):
                        up, bias = layer.tensors["up"], layer.tensors["bias"]
                        hidden[number] = torch.tanh(hidden[number] @ up + bias)
            for found, wanted in zip(hidden, expected, strict=True):
                torch.testing.assert_close(found, wanted)
    for stream in group:
        stream.close()
