"""The file with the layers, and the sums by which their bytes are checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch  # type: ignore[import-not-found,unused-ignore]

import forebay
from forebay._errors import shown

from . import theory

if TYPE_CHECKING:
    from pathlib import Path


#: Words that are weighed at once, so that little memory is taken for it.
_PART = 1 << 22


@dataclass(frozen=True)
class Model:
    """Two sets of layers, one behind the other: a pass takes one while the other is forgotten."""

    path: Path
    layers: int
    nbytes: int
    sums: list[int]

    def offset(self, layer: int) -> int:
        """Where a layer begins in the file."""
        return layer * self.nbytes

    def passes(self, order: str, number: int) -> list[int]:
        """The layers that the pass with this number takes."""
        first = number % 2 * self.layers
        return [first + layer for layer in theory.turns(order, self.layers)]


def made(path: Path, layers: int, nbytes: int, device: str, seed: int) -> Model:
    """Writes the file if there is none, and never over another; removes it if that fails."""
    generator = torch.Generator(device).manual_seed(seed)
    words = torch.empty(nbytes // 8, dtype=torch.int64, device=device)
    words.random_(generator=generator)
    first, count = int(weighed(words)), nbytes // 8
    # Each layer is the first with all its words changed alike; the weights add up to a square.
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
    """Raises if the file that is there was not made whole by `made` with the same layers."""
    path, wanted = model.path, 2 * model.layers * model.nbytes
    if path.stat().st_size == wanted:
        count = model.nbytes // 8
        begin = torch.from_file(str(path), size=count, dtype=torch.int64)
        if int(weighed(begin.to(device))) == model.sums[0]:
            return
    raise ValueError(f"`{shown(path)}` holds something else: give another file, or remove it")


def weighed(words: torch.Tensor) -> torch.Tensor:
    """The sum of the words, each as often as two times its place and once more: other words, or
    these in another order, have another one.
    """
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    weights = torch.arange(1, 2 * _PART, 2, dtype=torch.int64, device=words.device)
    for number, part in enumerate(words.split(_PART)):
        total += (part * (weights[: len(part)] + 2 * _PART * number)).sum()
    return total


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)
