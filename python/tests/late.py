"""What the tests of layers on a busy GPU share: a model, and copies that the GPU makes late."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import content
from forebay.stream import Layer, LayerStream
from tensors import torch_or_skip

torch = torch_or_skip()

#: Layers, bytes of each at least, and those of its first part.
LAYERS, NBYTES, CUT = 5, 8 << 20, 1_000_003
#: Of the GPU's clock: some 10 ms, in which several layers come.
BUSY = 20_000_000
#: Until a file was not changed for long enough to have its pages pinned.
SETTLED = 2.2
#: Room for each layer, none of which is longer.
ROOM = NBYTES + 16384
ALL = LAYERS * ROOM

#: A layer's number, a copy of its memory, and where its parts lie there.
Copy = tuple[int, Any, list[tuple[int, int]]]


class Model:
    """Layers of two parts, of odd lengths at odd places of a file, unused bytes between them."""

    def __init__(self, path: Path) -> None:
        self.seed = int(os.environ.get("FOREBAY_TEST_SEED", random.randrange(1 << 32)))
        print(f"FOREBAY_TEST_SEED={self.seed}")
        draw = random.Random(self.seed)
        self.path, self.at, end = path, [], 0
        for _ in range(LAYERS):
            start = end + 2 * draw.randrange(1, 4000) + 1
            start += start % 2 == 0
            end = start + NBYTES + 2 * draw.randrange(4000) + 1
            self.at.append((start, end))
        # What follows the last layer is more than what a direct write leaves out.
        self.data = content(end + 9001, self.seed)
        path.write_bytes(self.data)
        self.file = forebay.open(path, "r+")
        self.layers = [
            [(self.file, start, CUT), (self.file, start + CUT, end - start - CUT)]
            for start, end in self.at
        ]

    def of(self, number: int, data: bytes | None = None) -> bytes:
        """A layer's bytes, in what is given or in what the file began with."""
        start, end = self.at[number]
        return (self.data if data is None else data)[start:end]

    def stream(self, buffers: int = 2, **options: Any) -> LayerStream:
        """Its layers on the GPU, which has room for a few of them."""
        made = LayerStream(self.layers, "cuda", gpu_budget=buffers * ROOM, **options)
        assert (made.slices, made.buffers) == (1, min(buffers, LAYERS))
        return made


def queued(layer: Layer, work: int = BUSY) -> Copy:
    """A copy of a layer's memory, which the GPU makes once it has done other work."""
    torch.cuda._sleep(work)
    return layer.index, torch.from_dlpack(layer.memory).clone(), layer.places


def held(copy: Any, places: list[tuple[int, int]]) -> bytes:
    """What a copy of a layer's memory has in the places of its parts."""
    found: bytes = copy.cpu().numpy().tobytes()
    return b"".join(found[start : start + length] for start, length in places)


def compare(model: Model, seen: list[Copy], data: bytes | None = None) -> None:
    for position, (number, copy, places) in enumerate(seen):
        right = held(copy, places) == model.of(number, data)
        assert right, f"layer {number}, taken as {position}, seed {model.seed}"


def settle(model: Model, stream: LayerStream) -> None:
    """Takes passes until all comes from pinned pages."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        # The kernel may reclaim pages that were unused for a while.
        model.path.read_bytes()
        seen = [queued(layer) for layer in stream]
        # A pass is counted with the GPU's own times, so once the GPU is done with it.
        torch.cuda.synchronize()
        compare(model, seen)
        last = stream.statistics()["passes"][-1]
        if last["mapped_bytes"] > 0 and last["file_bytes"] == 0:
            return
    pytest.fail(f"not all pages are pinned: {stream.mapped()}")
