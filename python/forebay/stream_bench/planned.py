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

#: Passes before the first prediction, and measured passes after it.
_BEFORE, _PASSES = 2, 5

# More than the padding of a pinned layer.
_ROUNDED = 1 << 16


def trials(
    model: Model, compute: Compute, raw: Raw, device: str, given: Namespace
) -> list[dict[str, Any]]:
    """Measures a stream of the first set of layers for each round.

    Passes follow each other: the next layers are loaded while a pass ends.
    """
    return [_trial(model, compute, raw, device, given.buffers) for _ in range(given.rounds)]


def _predicted(stream: LayerStream) -> float:
    """The predicted time of the next pass."""
    prediction = stream.prediction()
    if prediction is None:
        raise RuntimeError("no prediction after the second pass of a stream")
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
        # The drive's time right after the passes.
        "raw_s": raw.read(drives),
    }
