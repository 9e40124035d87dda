"""Runs a model that is larger than its GPU memory: the next layer loads during the computation.

    python examples/layers.py

Needs torch.
"""

import tempfile
from pathlib import Path

import forebay
import torch
from forebay.torch import LayerStream, TensorAt, save

LAYERS, WIDTH = 8, 256
SIZE = WIDTH * WIDTH * 4  # bytes of a layer


def main(path: Path) -> None:
    weights = [torch.randn(WIDTH, WIDTH) / WIDTH**0.5 for _ in range(LAYERS)]
    save(path, weights)  # one after another

    # A simulated GPU if there is none.
    gpu, device = ("cuda", "cuda") if torch.cuda.is_available() else ("sim", "cpu")
    file = forebay.open(path)
    shape = (WIDTH, WIDTH)
    layers = [{"up": TensorAt(file, n * SIZE, torch.float32, shape)} for n in range(LAYERS)]
    hidden = start = torch.randn(8, WIDTH, device=device)
    with torch.no_grad(), LayerStream(layers, gpu, gpu_budget=3 * SIZE) as stream:
        for layer in stream:
            hidden = torch.tanh(hidden @ layer.tensors["up"])

    expected = start
    for weight in weights:
        expected = torch.tanh(expected @ weight.to(device))
    assert torch.allclose(hidden, expected, atol=1e-3)
    print(f"{LAYERS} layers, three of them in memory at a time: {tuple(hidden.shape)}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=".") as new:
        main(Path(new, "layers.bin"))
