"""Half of the layers pinned, as the planner places them: what it predicts, beside what passes take."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch  # type: ignore[import-not-found,unused-ignore]

import forebay
from forebay.stream import LayerStream

from . import residency

if TYPE_CHECKING:
    from argparse import Namespace

    from .compute import Compute
    from .model import Model
    from .raw import Raw

#: Passes until layers are placed, at most, and those that are measured then.
_UNTIL_PLACED, _PASSES = 9, 5

# More than a layer takes beyond its bytes where it is pinned.
_ROUNDED = 1 << 16


def trials(
    model: Model, compute: Compute, raw: Raw, device: str, given: Namespace
) -> list[dict[str, Any]]:
    """So many streams of the first set of layers as there are rounds, each with a plan of its own.

    Passes follow each other, as the planner expects: the next layers come while one ends.
    """
    return [_trial(model, compute, raw, device, given.buffers) for _ in range(given.rounds)]


def _predicted(stream: LayerStream) -> float:
    """How long the next pass is to take, by those before it."""
    placement = stream.placement()
    if placement is None:
        raise RuntimeError(f"the plan is gone: {stream.unplanned()}")
    return float(placement["pass_s"])


def _trial(
    model: Model, compute: Compute, raw: Raw, device: str, buffers: int
) -> dict[str, Any]:
    residency.evict(model.path)
    numbers = range(model.layers)
    with (
        forebay.open(model.path) as file,
        LayerStream(
            [[(file, model.offset(layer), model.nbytes)] for layer in numbers],
            device,
            gpu_budget=buffers * model.nbytes,
            host_budget=model.layers // 2 * (model.nbytes + _ROUNDED),
            mapped_budget=0,
            stream=compute.stream,
        ) as stream,
    ):

        def one() -> float:
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in stream:
                compute.run()
            torch.cuda.synchronize()
            return time.perf_counter() - started

        before: list[float] = []
        while len(before) < _UNTIL_PLACED and stream.placement() is None:
            before.append(one())
        placement = stream.placement()
        if placement is None:
            raise RuntimeError(f"no plan after {len(before)} passes: {stream.unplanned()}")
        before.append(one())  # what is pinned comes there in the pass after
        passes, each = [], []
        for _ in range(_PASSES):
            each.append(_predicted(stream))
            passes.append(one())
    drives = [layer for layer in numbers if placement["tiers"][layer] == "drive"]
    return {
        "predicted_s": placement["pass_s"],
        "predicted_each_s": each,
        "tiers": placement["tiers"],
        "before_s": before,
        "passes_s": passes,
        # How fast the drive was just behind it.
        "raw_s": raw.read(drives),
    }
