"""Where Forebay finds layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCES = ("drive", "page-cache", "slots", "pinned", "half")

#: The sources that read from a drive.
COLD = ("drive", "half")


def is_from_drive(place: int) -> bool:
    """Whether the layer at this place of a pass comes from the drive, with the source `half`."""
    return place % 2 == 1


def from_drive(source: str, taken: Sequence[int], layers: int) -> list[int]:
    """The taken layers that come from the drive; ``layers`` is the number of layers of a set."""
    comes = {"drive": lambda _: True, "half": is_from_drive}.get(source, lambda _: False)
    return [layer for layer in taken if comes(layer % layers)]


def part_from_drive(source: str, layers: int) -> float:
    """The share of a pass's bytes that comes from the drive."""
    return len(from_drive(source, range(layers), layers)) / layers
