"""How long the stages of an engine's transfers have taken, and its pinned memory."""

from __future__ import annotations

from typing import NamedTuple


class Durations(NamedTuple):
    """Durations of a stage, in seconds; quantiles are rounded up by at most 1/16."""

    samples: int
    total: float
    median: float | None
    p99: float | None
    p999: float | None
    longest: float


class Statistics(NamedTuple):
    """Durations of an engine's stages so far, without transfers on a caller's own thread, and its
    pinned memory now.

    Attributes:
        file: requests to files, from submission to completion.
        slot_wait: waits of transfers for a staging buffer, if none was free.
        link_wait: waits of filled staging buffers for their copy to be queued.
        copy: copies between staging buffers and GPUs.
        pinned: bytes of pinned memory that the engine uses itself, of at most `arena_size`.
    """

    file: Durations
    slot_wait: Durations
    link_wait: Durations
    copy: Durations
    pinned: int
