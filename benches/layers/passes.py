"""Samples of passes, and their medians."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import theory

_BYTES = ("pinned_bytes", "mapped_bytes", "file_bytes")

#: Measured in addition to the methods.
ALONE = ("compute", "transfer", "raw")

#: The method that reads no files, and the one that may keep a part of the layers in memory.
_OF_THE_LINK, _KEEPS_A_PART = "two-buffers", "forebay"


@dataclass(frozen=True)
class Sample:
    """One pass, in seconds."""

    #: Which round; those before round 0 only warm up.
    round: int
    #: Which pass of its turn; before the first, the method was idle.
    place: int
    #: From the first call to the end of all queued work.
    wall_s: float
    #: CPU seconds of all threads.
    cpu_s: float
    #: Compute by the GPU's clock, forward and backward.
    forward_s: float = 0.0
    backward_s: float = 0.0
    #: Idle time of the compute's stream, from the start of the pass to the end of its compute.
    stall_s: float = 0.0
    #: The method's own statistics of the pass, if it has any.
    reported: dict[str, float] = field(default_factory=dict)

    @property
    def compute_s(self) -> float:
        """Compute by the same events for every method: a stream's own are further apart."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True)
class Point:
    """The settings for all methods."""

    order: str
    layers: int
    layer_bytes: int
    tokens: int
    #: The share of a pass's bytes that Forebay reads from the drive.
    from_drive: float = 0.0


def in_turn(names: list[str], round_: int) -> list[str]:
    """All in the order of this round. Every second round runs backwards, so that a drift affects
    all alike.
    """
    return names if round_ % 2 == 0 else names[::-1]


def counted(samples: Sequence[Sample]) -> list[Sample]:
    """The samples without the warm-up."""
    return [sample for sample in samples if sample.round >= 0]


def following(samples: Sequence[Sample]) -> list[Sample]:
    """Counted samples that follow another of their turn, or all counted ones if none does."""
    own = counted(samples)
    return [sample for sample in own if sample.place] or own


def middle(samples: Sequence[Sample], of: Callable[[Sample], float]) -> float:
    """The median of the samples of `following`."""
    return median(of(sample) for sample in following(samples))


def summed_up(
    point: Point, samples: dict[str, list[Sample]], buffers: dict[str, int]
) -> dict[str, Any]:
    """The results of one number of tokens; ``buffers`` are the layers that each method holds on the GPU."""
    taken = theory.turns(point.order, point.layers)
    alone, raw = samples["compute"], samples.get("raw")
    link = middle(samples["transfer"], lambda sample: sample.wall_s) / len(taken)
    # Plain reads are those of the layers that come from the drive.
    read = max(1, round(len(taken) * point.from_drive))
    drive = middle(raw, lambda sample: sample.wall_s) / read if raw else None
    work = _work(point, alone)

    def transfer(name: str, drive: float | None) -> float:
        """Seconds of a layer: all bytes cross the link, and some are read from the drive first."""
        part = {_OF_THE_LINK: 0.0, _KEEPS_A_PART: point.from_drive}.get(name, 1.0)
        return max(link, part * (drive or 0.0))

    def line(name: str, drive: float | None) -> theory.Pass:
        compute = _least(point, work, samples[name], alone)
        return theory.line(point.order, compute, transfer(name, drive), point.layers, buffers[name])

    def over_line(name: str, found: Sequence[Sample]) -> float:
        """Compares each pass with the plain reads of its round: a drive's rate changes."""
        if not raw:
            return middle(found, lambda sample: sample.wall_s) / line(name, None).time
        reads = {sample.round: sample.wall_s / read for sample in counted(raw)}
        own = following(found)
        return median(sample.wall_s / line(name, reads[sample.round]).time for sample in own)

    return {
        "tokens": point.tokens,
        "turns": len(taken),
        "compute_s": middle(alone, lambda sample: sample.wall_s),
        "forward_layer_s": work[0],
        "backward_layer_s": work[-1] if point.order == "train" else None,
        "transfer_layer_s": transfer(_KEEPS_A_PART, drive),
        "link_layer_s": link,
        "drive_layer_s": drive,
        "samples": {name: [asdict(each) for each in found] for name, found in samples.items()},
        "ways": {
            name: {
                **_way(point, found, alone, line(name, drive)),
                "transfer_layer_s": transfer(name, drive),
                "over_line": over_line(name, found),
            }
            for name, found in samples.items()
            if name not in ALONE
        },
    }


def _least(
    point: Point, work: list[float], samples: Sequence[Sample], alone: Sequence[Sample]
) -> list[float]:
    """The turns' compute alone, or during this method if that took less, for each direction.

    A GPU at its power limit changes its speed by itself, and is slowest if it never rests
    (docs/internals.md#layers).
    """

    def to_alone(of: Callable[[Sample], float]) -> float:
        busy, by_itself = middle(samples, of), middle(alone, of)
        return min(1.0, busy / by_itself) if busy > 0 and by_itself > 0 else 1.0

    forward = to_alone(lambda sample: sample.forward_s)
    backward = to_alone(lambda sample: sample.backward_s)
    there, back = work[: point.layers], work[point.layers :]
    return [turn * forward for turn in there] + [turn * backward for turn in back]


def _work(point: Point, alone: Sequence[Sample]) -> list[float]:
    """Seconds of each turn's compute, equal for all turns of a direction."""
    wall = middle(alone, lambda sample: sample.wall_s)
    if point.order != "train":
        return [wall / point.layers] * point.layers
    # The total is that of the passes; the forward share is by the GPU's clock.
    there = middle(
        alone, lambda sample: sample.forward_s / (sample.forward_s + sample.backward_s)
    )
    forward, backward = wall * there / point.layers, wall * (1 - there) / point.layers
    return [forward] * point.layers + [backward] * point.layers


def _from_drive(samples: Sequence[Sample]) -> dict[str, int]:
    """The part of the files' bytes that was not found in the page cache, if known."""
    reported = [sample.reported["drive_bytes"] for sample in samples if "drive_bytes" in sample.reported]
    return {"drive_bytes": round(median(reported))} if len(reported) == len(samples) else {}


def _way(
    point: Point, samples: Sequence[Sample], alone: Sequence[Sample], line: theory.Pass
) -> dict[str, Any]:
    own = following(samples)
    rested = [sample.wall_s for sample in counted(samples) if sample not in own]
    walls = [sample.wall_s for sample in own]
    bytes_ = {
        name: round(median(sample.reported[name] for sample in own))
        for name in _BYTES
        if all(name in sample.reported for sample in own)
    }
    read = sum(bytes_.values()) or line.reads * point.layer_bytes
    busy = middle(samples, lambda sample: sample.compute_s)
    return {
        "pass_s": median(walls),
        "pass_low_s": min(walls),
        "pass_high_s": max(walls),
        "rested_s": median(rested) if rested else None,
        "line_s": line.time,
        "line_stall_s": line.stall,
        "line_reads": line.reads,
        "reads": read / point.layer_bytes,
        "stall_s": middle(samples, lambda sample: sample.stall_s),
        "compute_ratio": busy / middle(alone, lambda sample: sample.compute_s),
        "cpu_s_per_gb": middle(samples, lambda sample: sample.cpu_s) / (read / 1e9),
        "bytes": bytes_ | _from_drive(own),
    }
