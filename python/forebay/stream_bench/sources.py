"""Where Forebay finds layers."""

from __future__ import annotations

SOURCES = ("drive", "page-cache", "pinned", "mapped", "half")

#: Those of which something comes from a drive.
COLD = ("drive", "half")


def is_from_drive(place: int) -> bool:
    """Whether the layer at this place of a pass comes from the drive where half of them do."""
    return place % 2 == 1


def part_from_drive(source: str, layers: int) -> float:
    """Which part of a pass's bytes comes from the drive."""
    half = sum(map(is_from_drive, range(layers))) / layers
    return {"drive": 1.0, "half": half}.get(source, 0.0)
