"""Made-up passes, for tests of the report of measured ones."""

from __future__ import annotations

from typing import Any

from forebay.stream_bench.samples import Sample


def samples_of(walls: list[float], **more: Any) -> list[Sample]:
    """A turn of a pass each, behind one that only warms up."""
    warm = Sample(-1, 0, 100.0, 100.0)
    return [warm, *(Sample(number, 0, wall, 0.5, **more) for number, wall in enumerate(walls))]
