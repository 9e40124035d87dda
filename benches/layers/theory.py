"""The least time of a pass: a number of buffers, one link, one compute, and nothing else; the
sources and the sizes of layers.

It is independent of the engine, which is compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Shape:
    """The sizes of a layer."""

    hidden: int = 5120
    query_heads: int = 96
    key_heads: int = 8
    head: int = 128
    expert: int = 1536
    active: int = 8

    @property
    def queries(self) -> int:
        """The width of all queries."""
        return self.query_heads * self.head

    @property
    def mixed(self) -> int:
        """The width of all queries, keys and values."""
        return self.queries + 2 * self.key_heads * self.head

    @property
    def experts(self) -> int:
        """Experts of a token: the shared one and the active routed ones."""
        return self.active + 1

    def operations(self, tokens: int, *, backward: bool) -> int:
        """Multiplications and additions of one turn, with the causal half of attention.

        Backward takes three times as many: forward once more, and for each product the gradients of
        both factors.
        """
        weights = self.hidden * (self.mixed + self.queries)
        weights += self.experts * 3 * self.hidden * self.expert
        # Each token attends to itself and all before, once for weights and once for values.
        attention = self.queries * tokens * (tokens + 1)
        forward = 2 * tokens * weights + 2 * attention
        return 3 * forward if backward else forward
