"""How long a pass takes at best: so many buffers, one link, one compute, and nothing in between.

It knows nothing of the engine: what that does is held against this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ORDERS = ("forward", "backward", "train")


def turns(order: str, layers: int) -> list[int]:
    """The layers that a pass takes, from the first to the last."""
    forward = list(range(layers))
    return {
        "forward": forward,
        "backward": forward[::-1],
        "train": forward + forward[::-1],
    }[order]


@dataclass(frozen=True)
class Turn:
    """One layer's turn."""

    #: Where its layer lies.
    buffer: int
    #: Whether it has to be read for this turn.
    read: bool
    #: The turn whose compute has to be over before the buffer is written; ``None``: it is empty.
    after: int | None


def plan(layers: Sequence[int], buffers: int) -> list[Turn]:
    """Where each layer comes to, so that as few as possible are read.

    What gives way is the layer that is needed again last (Belady), but not the one whose turn
    has just been: the read could not begin before that turn's end. Of those that are never needed
    again, the one used longest ago gives way.
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
    """The next turn of each turn's layer; a turn behind the last if there is no such turn."""
    coming: dict[int, int] = {}
    found = [len(layers)] * len(layers)
    for number in reversed(range(len(layers))):
        found[number] = coming.get(layers[number], len(layers))
        coming[layers[number]] = number
    return found


@dataclass(frozen=True)
class Pass:
    """What a pass takes, in seconds."""

    time: float
    compute: float
    transfer: float
    reads: int

    @property
    def stall(self) -> float:
        """What the compute waits."""
        return self.time - self.compute


def simulated(planned: Sequence[Turn], compute: Sequence[float], transfer: float) -> Pass:
    """Lets every read begin as soon as link and buffer are free, and every turn with its layer."""
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
    """A pass that begins with nothing on the GPU.

    ``compute`` is each turn's, ``transfer`` one layer's. Where every turn takes as long and none
    finds its layer there, it is the greater of compute and transfer, and the edge that nothing can
    hide: one turn of the other.
    """
    return simulated(plan(turns(order, layers), buffers), compute, transfer)
