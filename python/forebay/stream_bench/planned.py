"""Half of the layers pinned: predicted and measured times of passes."""

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

#: Passes until one is predicted, and those that are measured then.
_BEFORE, _PASSES = 2, 5

# More than a layer takes beyond its bytes where it is pinned.
_ROUNDED = 1 << 16


def trials(
    model: Model, compute: Compute, raw: Raw, device: str, given: Namespace
) -> list[dict[str, Any]]:
    """As many streams of the first set of layers as there are rounds.

    Passes follow each other: the next layers come while one ends.
    """
    return [_trial(model, compute, raw, device, given.buffers) for _ in range(given.rounds)]


def _predicted(stream: LayerStream) -> float:
    """How long the next pass takes, by the one before it."""
    prediction = stream.prediction()
    if prediction is None:
        raise RuntimeError("a stream whose second pass is over predicts nothing")
    return float(prediction["pass_s"])


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

        before = [one() for _ in range(_BEFORE)]
        tiers, passes, each = stream.tiers, [], []
        for _ in range(_PASSES):
            each.append(_predicted(stream))
            passes.append(one())
    drives = [layer for layer in numbers if tiers[layer] == "file"]
    return {
        "predicted_s": each[0],
        "predicted_each_s": each,
        "tiers": tiers,
        "before_s": before,
        "passes_s": passes,
        # How fast the drive was just behind it.
        "raw_s": raw.read(drives),
    }
