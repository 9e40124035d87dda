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
    """Layers of a matrix and a vector each, and what is in them, for a GPU."""
    device_or_skip("cuda")
    return made(tmp_path)


def made(tmp_path: Path) -> Model:
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


def test_layers_can_be_tried_on_the_simulated_gpu(tmp_path: Path) -> None:
    layers, tensors = made(tmp_path)
    begin = torch.randn(8, ROWS)
    with LayerStream(layers, "sim", gpu_budget=3 << 19) as stream:
        for _ in range(2):
            hidden = begin
            for layer in stream:
                hidden = torch.tanh(hidden @ layer.tensors["up"] + layer.tensors["bias"])
            torch.testing.assert_close(hidden, computed(tensors, begin))


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


def test_layers_without_names_are_numbered_and_cut_between_tensors(model: Model) -> None:
    layers, tensors = model
    listed = [list(layer.values()) for layer in layers]
    with LayerStream(listed, "cuda", gpu_budget=3 << 19) as stream:
        for layer, pair in zip(stream, tensors, strict=True):
            assert list(layer.tensors) == ["0", "1"]
            for found, wanted in zip(layer.tensors.values(), pair, strict=True):
                torch.testing.assert_close(found.cpu(), wanted)
    # Two of the matrices fit, and no two layers: each tensor comes by itself.
    with LayerStream(layers, "cuda", gpu_budget=2 * 4 * ROWS * ROWS + 1024) as stream:
        for _ in range(2):
            seen = []
            for layer in stream:
                [(name, found)] = layer.tensors.items()
                wanted = tensors[layer.index][("up", "bias").index(name)]
                torch.testing.assert_close(found.cpu(), wanted)
                seen.append((layer.index, name))
            assert seen == [(index, name) for index in range(LAYERS) for name in ("up", "bias")]


def test_tensors_that_do_not_fit_their_bytes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(4096))
    wrong = [
        ((torch.float32, (2, -1)), "tensor 'up' cannot have the shape (2, -1)"),
        ((torch.float32, (2, 3), 25), "25 bytes, which is not a multiple of 4, the size of torch."),
        ((torch.float32, (2, 3), 28), "28 bytes, but the shape (2, 3) of torch.float32 takes 24"),
    ]  # fmt: skip
    with forebay.open(tmp_path / "file") as file:
        for given, expected in wrong:
            layers = [{"up": TensorAt(file, 0, *given)}] * 2
            for make in (
                lambda layers=layers: LayerStream(layers, "cuda"),
                lambda layers=layers: LayerStream.group(layers, ["cuda"]),
            ):
                with pytest.raises(ValueError) as refused:
                    make()
                assert expected in str(refused.value)


def test_a_tensor_is_a_view_of_the_layers_memory() -> None:
    from forebay.torch._layers import _described, _parts, _view

    memory = torch.arange(256, dtype=torch.uint8)
    tensor = TensorAt(None, 0, torch.int16, (2, 3), 12)  # type: ignore[arg-type]
    found = _view(memory, (16, 12), tensor)
    assert found.shape == (2, 3) and found.data_ptr() == memory.data_ptr() + 16
    assert found.flatten().tolist() == [(2 * n + 17) * 256 + 2 * n + 16 for n in range(6)]
    scalar, none = tensor._replace(shape=(), length=2), tensor._replace(shape=(0, 3), length=0)
    assert int(_view(memory, (16, 2), scalar)) == 17 * 256 + 16
    assert _view(memory, (16, 0), none).shape == (0, 3)
    described = _described([[tensor, scalar], {"a": none}])
    assert [[name for name, _ in layer] for layer in described] == [["0", "1"], ["a"]]
    assert _parts(described) == [[(None, 0, 12), (None, 0, 2)], [(None, 0, 0)]]
