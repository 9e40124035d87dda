"""Passes in turn, and what they took."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

import torch  # type: ignore[import-not-found,unused-ignore]

from . import model as files
from .ways.pinned import Pinned

if TYPE_CHECKING:
    from collections.abc import Callable

    from .compute import Compute
    from .model import Model
    from .ways.way import Way


@dataclass
class Samples:
    """Seconds of each pass, and of the processor."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the passes."""
        return median(self.wall)


def measured(work: Callable[[], None], samples: Samples) -> None:
    """Runs a pass, from the first call to the end of all that it queued."""
    torch.cuda.synchronize()
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    work()
    torch.cuda.synchronize()
    samples.wall.append(time.perf_counter() - started)
    after = resource.getrusage(resource.RUSAGE_SELF)
    used = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    samples.cpu.append(used)


def backwards(order: str, layers: int) -> Callable[[int], bool]:
    """Whether the turn with this number is one of the way back."""
    return lambda turn: order == "train" and turn >= layers


def run(
    model: Model, compute: Compute, ways: dict[str, Way], order: str, rounds: int, *, cold: bool
) -> dict[str, Samples]:
    """Every way in turn, ``rounds`` times, after one pass that counts for nothing."""
    is_back = backwards(order, model.layers)
    names = ["compute", *(["transfer"] if "two-buffers" in ways else []), *ways]
    samples = {name: Samples() for name in names}
    for number in range(-1, rounds):
        layers = model.passes(order, number % 2)
        turned = names[number % len(names) :] + names[: number % len(names)]
        for name in turned:
            if cold and name not in ("compute", "transfer", "two-buffers"):
                files.evict(model.path)
            work = _work(name, layers, compute, ways, is_back)
            measured(work, samples[name] if number >= 0 else Samples())
    return samples


def _work(
    name: str,
    layers: list[int],
    compute: Compute,
    ways: dict[str, Way],
    is_back: Callable[[int], bool],
) -> Callable[[], None]:
    def alone() -> None:
        for turn in range(len(layers)):
            compute.run(backward=is_back(turn))

    if name == "compute":
        return alone
    if name == "transfer":
        pinned = ways["two-buffers"]
        assert isinstance(pinned, Pinned)
        return lambda: pinned.transfer(layers)
    way = ways[name]

    def behind() -> None:
        turns = iter(range(len(layers)))
        way.run(layers, compute.stream, lambda *_: compute.run(backward=is_back(next(turns))))

    return behind


def check(model: Model, way: Way, order: str) -> None:
    """A pass of its own, in which the GPU sums up every layer's bytes.

    Raises an error for the first layer that is not what the file holds.
    """
    stream = torch.cuda.Stream()
    found: list[tuple[int, torch.Tensor]] = []

    def use(layer: int, memory: torch.Tensor) -> None:
        with torch.cuda.stream(stream):
            found.append((layer, memory.view(torch.int64).sum()))

    for number in (0, 1):
        way.run(model.passes(order, number), stream, use)
        torch.cuda.synchronize()
    for layer, total in found:
        if int(total) != model.sums[layer]:
            raise RuntimeError(f"{way.name}: layer {layer} is not what the file holds")
