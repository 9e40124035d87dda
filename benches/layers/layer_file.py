"""The file with the layers, and the checksums of their bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import forebay
import theory
import torch

#: Words of one step of a checksum, which bounds its memory.
_PART = 1 << 22


@dataclass(frozen=True)
class Model:
    """Two sets of layers in one file. Passes alternate between them."""

    path: Path
    layers: int
    nbytes: int
    sums: list[int]

    def offset(self, layer: int) -> int:
        """Where a layer begins in the file."""
        return layer * self.nbytes

    def passes(self, order: str, number: int) -> list[int]:
        """The layers of the pass with this number."""
        first = number % 2 * self.layers
        return [first + layer for layer in theory.turns(order, self.layers)]


def made(path: Path, layers: int, nbytes: int, device: str, seed: int) -> Model:
    """Writes the file if it is missing, else checks it; removes it if writing fails."""
    generator = torch.Generator(device).manual_seed(seed)
    words = torch.empty(nbytes // 8, dtype=torch.int64, device=device)
    words.random_(generator=generator)
    first, count = int(weighed(words)), nbytes // 8
    # Each layer is the first one with a key added to each word. The weights add up to count**2.
    keys = [(0x9E3779B97F4A7C15 * (layer + 1)) % (1 << 62) for layer in range(2 * layers)]
    sums = [_signed(first + count**2 * key) for key in keys]
    model = Model(path, layers, nbytes, sums)
    try:
        file = forebay.open(path, "x")
    except FileExistsError:
        _check(model, device)
        return model
    try:
        with file:
            changed = torch.empty_like(words)
            for layer, key in enumerate(keys):
                torch.add(words, key, out=changed)
                if changed.is_cuda:
                    torch.cuda.synchronize()
                file.write_from(changed, offset=model.offset(layer))
            file.sync()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return model


def _check(model: Model, device: str) -> None:
    """Raises if the file was not completely written by `made` with the same layers."""
    path, wanted = model.path, 2 * model.layers * model.nbytes
    if path.stat().st_size == wanted:
        count = model.nbytes // 8
        begin = torch.from_file(str(path), size=count, dtype=torch.int64)
        if int(weighed(begin.to(device))) == model.sums[0]:
            return
    raise ValueError(f"`{path}` has other contents: give another file, or remove it")


def touch(path: Path) -> None:
    """Reads the file into the page cache."""
    part = bytearray(64 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(part):
            pass


def weighed(words: torch.Tensor) -> torch.Tensor:
    """A checksum: the sum of all words, each times twice its index plus one. It depends on the
    order of the words.
    """
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    weights = torch.arange(1, 2 * _PART, 2, dtype=torch.int64, device=words.device)
    for number, part in enumerate(words.split(_PART)):
        total += (part * (weights[: len(part)] + 2 * _PART * number)).sum()
    return total


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
