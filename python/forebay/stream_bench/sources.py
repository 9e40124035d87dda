"""Where Forebay finds layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCES = ("drive", "page-cache", "pinned", "mapped", "half")

#: Those of which something comes from a drive.
COLD = ("drive", "half")


def is_from_drive(place: int) -> bool:
    """Whether the layer at this place of a pass comes from the drive where half of them do."""
    return place % 2 == 1


def from_drive(source: str, taken: Sequence[int], layers: int) -> list[int]:
    """Those of the layers that are taken which come from the drive; a set has so many ``layers``."""
    comes = {"drive": lambda _: True, "half": is_from_drive}.get(source, lambda _: False)
    return [layer for layer in taken if comes(layer % layers)]


def part_from_drive(source: str, layers: int) -> float:
    """Which part of a pass's bytes comes from the drive."""
    return len(from_drive(source, range(layers), layers)) / layers
