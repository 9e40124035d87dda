"""The least time of a pass: a number of buffers, one link, one compute, and nothing else.

It is independent of the engine, which is compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ORDERS = ("forward", "backward", "train")


def turns(order: str, layers: int) -> list[int]:
    """The layers that a pass takes, in order."""
    forward = list(range(layers))
    return {
        "forward": forward,
        "backward": forward[::-1],
        "train": forward + forward[::-1],
    }[order]


@dataclass(frozen=True)
class Turn:
    """One layer's turn."""

    #: The buffer of its layer.
    buffer: int
    #: Whether the layer is read for this turn.
    read: bool
    #: The turn whose compute must end before the buffer is written; ``None`` if it is empty.
    after: int | None


def plan(layers: Sequence[int], buffers: int) -> list[Turn]:
    """Assigns buffers to layers, so that as few as possible are read.

    It evicts the layer that is needed again last (Belady), but not that of the turn before: the
    read could not begin before that turn's end. Of layers that are never needed again, it evicts
    the one used longest ago.
    """
    if buffers < 1:
        raise ValueError(f"{buffers} buffers hold no layer")
    again = _used_again(layers)
    held: dict[int, int] = {}  # layer: buffer
    used: dict[int, int] = {}  # layer: its last turn
    planned = []
    for number, layer in enumerate(layers):
        read, after = layer not in held, None
        if read and len(held) < buffers:
            held[layer] = len(held)
        elif read:
            spared = layers[number - 1] if buffers > 1 else None
            away = max(
                (other for other in held if other != spared),
                key=lambda other: (again[used[other]], -used[other]),
            )
            held[layer], after = held.pop(away), used[away]
        used[layer] = number
        planned.append(Turn(held[layer], read, after))
    return planned


def _used_again(layers: Sequence[int]) -> list[int]:
    """The next turn of each turn's layer; the number of turns if there is none."""
    coming: dict[int, int] = {}
    found = [len(layers)] * len(layers)
    for number in reversed(range(len(layers))):
        found[number] = coming.get(layers[number], len(layers))
        coming[layers[number]] = number
    return found


@dataclass(frozen=True)
class Pass:
    """The times of a pass, in seconds."""

    time: float
    compute: float
    transfer: float
    reads: int

    @property
    def stall(self) -> float:
        """How long the compute waits."""
        return self.time - self.compute


def simulated(planned: Sequence[Turn], compute: Sequence[float], transfer: float) -> Pass:
    """Simulates a pass: a read begins once link and buffer are free, a turn with its layer."""
    link = 0.0
    over: list[float] = []
    for turn, work in zip(planned, compute, strict=True):
        begin = over[-1] if over else 0.0
        if turn.read:
            free = 0.0 if turn.after is None else over[turn.after]
            link = max(link, free) + transfer
            begin = max(begin, link)
        over.append(begin + work)
    reads = sum(turn.read for turn in planned)
    return Pass(over[-1] if over else 0.0, sum(compute), reads * transfer, reads)


def line(
    order: str, compute: Sequence[float], transfer: float, layers: int, buffers: int
) -> Pass:
    """The line: a pass that begins with nothing on the GPU.

    ``compute`` is that of each turn, ``transfer`` that of one layer. If all turns take equally long
    and each reads its layer, it is the longer of compute and transfer, plus one turn of the
    shorter, which nothing can hide.
    """
    return simulated(plan(turns(order, layers), buffers), compute, transfer)
