"""Measures passes of all methods, interleaved."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import forebay
import layer_file
import torch
from compute import Compute
from forebay.stream import LayerStream
from layer_file import Model
from passes import ALONE, Sample, in_turn
from raw import Raw
from theory import from_drive
from ways import Pinned, Way

#: Seconds of untimed compute before each turn, so that the GPU has rested equally long before each:
#: earlier work counts (docs/internals.md#layers). The length is a guess, which no run has measured.
_BUSY_S = 0.25


class Clock:
    """Times each layer's compute by events of the GPU, which are made once."""

    def __init__(self, compute: Compute, turns: int, back: int) -> None:
        def mark() -> torch.cuda.Event:
            return torch.cuda.Event(enable_timing=True)

        self._compute, self._back = compute, back
        self._begun = mark()
        self._marks = [(mark(), mark()) for _ in range(turns)]
        self._turn = 0

    def begin(self) -> None:
        """Starts a pass."""
        self._turn = 0
        self._begun.record(self._compute.stream)

    def run(self) -> None:
        """Queues the compute of the next turn."""
        before, behind = self._marks[self._turn]
        before.record(self._compute.stream)
        self._compute.run(backward=self._turn >= self._back)
        behind.record(self._compute.stream)
        self._turn += 1

    def times(self) -> dict[str, float]:
        """The times of the pass, once the GPU has ended it."""
        if self._turn < len(self._marks):
            return {}
        took = [before.elapsed_time(behind) / 1e3 for before, behind in self._marks]
        whole = self._begun.elapsed_time(self._marks[-1][1]) / 1e3
        there, back = sum(took[: self._back]), sum(took[self._back :])
        return {"forward_s": there, "backward_s": back, "stall_s": max(0, whole - there - back)}


class Rounds:
    """All methods, and compute and transfer alone, interleaved."""

    def __init__(
        self,
        model: Model,
        compute: Compute,
        limits: tuple[Pinned, Raw | None],
        ways: dict[str, Way],
        passes: tuple[str, str],
    ) -> None:
        """``passes`` is their order, and where Forebay finds their layers."""
        self._model = model
        self._order, self._source = passes
        (self._link, self._raw), self._ways = limits, ways
        turns = len(model.passes(self._order, 0))
        back = model.layers if self._order == "train" else turns
        self._compute, self._clock = compute, Clock(compute, turns, back)
        self._end = torch.cuda.Event(blocking=True)
        self._reported: dict[str, dict[str, float]] = {}
        #: How often passes allocated GPU memory, which they should not.
        self.allocations = 0

    def run(
        self, rounds: int, passes: int, *, warm: int, cold: bool
    ) -> dict[str, list[Sample]]:
        """Runs ``rounds`` turns of each method, after ``warm`` more that only warm up.

        A turn is ``passes`` without a pause. With ``cold``, the file is evicted before each pass.
        """
        names = ["compute", "transfer", *(["raw"] if self._raw else []), *self._ways]
        samples: dict[str, list[Sample]] = {name: [] for name in names}
        for number in range(-warm, rounds):
            for name in in_turn(names, number):
                for place in range(passes):
                    if cold and self._reads(name):
                        self._forget()
                    if place == 0:
                        self._keep_busy()
                    layers = self._model.passes(self._order, number * passes + place)
                    samples[name].append(self._measured(name, layers, (number, place)))
        return samples

    def _reads(self, name: str) -> bool:
        """Whether it reads through the page cache."""
        if name == "raw":
            return self._raw is not None and not self._raw.is_direct
        return name not in ALONE

    def _forget(self) -> None:
        """Evicts the file from all memory."""
        for way in self._ways.values():
            way.forget()
        evict(self._model)

    def _keep_busy(self) -> None:
        """Computes for a while."""
        until = time.perf_counter() + _BUSY_S
        while time.perf_counter() < until:
            self._compute.run()
            self._end.record(self._compute.stream)
            self._end.synchronize()

    def _measured(self, name: str, layers: list[int], turn: tuple[int, int]) -> Sample:
        """A pass, from the first call to the end of all queued work."""
        number, place = turn
        way = self._ways.get(name)
        work = self._work(name, layers)
        # Queried once per pass, so that the next one follows soon.
        reported = self._reported.get(name) or (way.statistics() if way else {})
        torch.cuda.synchronize()
        allocated = _allocated()
        before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        work()
        # Blocks: spinning until the GPU has ended would use a whole processor.
        self._end.record(self._link.copies if name == "transfer" else self._compute.stream)
        self._end.synchronize()
        torch.cuda.synchronize()
        wall = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
        self.allocations += _allocated() - allocated
        cpu = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        known = self._reported[name] = way.statistics() if way else {}
        reported = {key: value - reported.get(key, 0) for key, value in known.items()}
        times = {} if name in ("transfer", "raw") else self._clock.times()
        return Sample(number, place, wall, cpu, reported=reported, **times)

    def _work(self, name: str, layers: list[int]) -> Callable[[], None]:
        clock = self._clock

        def alone() -> None:
            clock.begin()
            for _ in layers:
                clock.run()

        def behind() -> None:
            clock.begin()
            self._ways[name].run(layers, self._compute.stream, lambda *_: clock.run())

        def raw() -> None:
            if self._raw is not None:
                # Layers that Forebay has in memory are not read.
                self._raw.read(from_drive(self._source, layers, self._model.layers))

        works = {"compute": alone, "transfer": lambda: self._link.transfer(layers), "raw": raw}
        return works.get(name, behind)


def _allocated() -> int:
    return int(torch.cuda.memory_stats().get("allocation.all.allocated", 0))


def check(model: Model, way: Way, order: str, times: int) -> None:
    """Verifies every layer's bytes on the GPU, in separate passes, each ``times`` times.

    Raises an error for the first layer with a mismatch.
    """
    stream = torch.cuda.Stream()
    found: list[tuple[int, torch.Tensor]] = []

    def use(layer: int, memory: torch.Tensor) -> None:
        with torch.cuda.stream(stream):
            found.append((layer, layer_file.weighed(memory.view(torch.int64))))

    for number in range(2 * times):
        way.run(model.passes(order, number), stream, use)
        torch.cuda.synchronize()
    for layer, total in found:
        if int(total) != model.sums[layer]:
            raise RuntimeError(f"{way.name}: mismatch in layer {layer}")


def evict(model: Model) -> None:
    """Evicts the layers from the page cache."""
    with forebay.open(model.path) as file:
        file.evict()


#: Passes before the first prediction, and measured passes after it.
_BEFORE, _PASSES = 2, 5

# More than the padding of a pinned layer.
_ROUNDED = 1 << 16


def predictions(
    model: Model, compute: Compute, raw: Raw, device: str, buffers: int, rounds: int
) -> list[dict[str, Any]]:
    """Predicted and measured times of passes with half of the layers pinned: a stream per round.

    Passes follow each other: the next layers are loaded while a pass ends.
    """
    return [_trial(model, compute, raw, device, buffers) for _ in range(rounds)]


def _predicted(stream: LayerStream) -> float:
    """The predicted time of the next pass."""
    prediction = stream.prediction()
    if prediction is None:
        raise RuntimeError("no prediction after the second pass of a stream")
    return float(prediction["pass_s"])


def _trial(
    model: Model, compute: Compute, raw: Raw, device: str, buffers: int
) -> dict[str, Any]:
    evict(model)
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
