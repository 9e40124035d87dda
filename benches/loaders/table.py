"""The results of a case: medians, ratios of medians, and doubts."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cases import Case, Side, State

GB, MIB = 1e9, 2**20
SPREAD = 2.0
"""The ratio of the fastest to the slowest load above which the machine counts as busy."""

HEAD = (
    f"{'loader':29} {'first':>6} {'then':>6} {'ratio':>5} {'s/GB':>5} {'host':>6} {'GPU':>6} "
    f"{'drive':>5}"
)


@dataclass(frozen=True)
class Row:
    """A loader in one state: medians over all rounds."""

    side: Side
    first: float
    """GB/s of the first load of a process."""
    then: float
    """GB/s of its further loads, or of the first if there are no others."""
    cpu: float
    """CPU seconds per GB."""
    host: float
    """MiB of host memory at the peak, beyond the tensors."""
    gpu: float
    """MiB of GPU memory at the peak, beyond the tensors."""
    drive: float
    """Bytes that all processes had drives read, over the bytes of the model."""
    read: float
    """The most bytes that a process read, over the bytes of its tensors; 0 if unknown."""
    doubts: list[str]


def row(side: Side, state: State, nbytes: int, lines: list[dict[str, Any]]) -> Row | None:
    """The medians; `None` if nothing was measured."""
    turns = [line["loads"] for line in lines if line["round"] >= 0 and "loads" in line]
    watched = [load for line in lines if line["round"] < 0 for load in line.get("loads", [])]
    if not turns:
        return None
    later = [load for turn in turns for load in turn[1:]] or [turn[0] for turn in turns]
    rates = [nbytes / load["seconds"] / GB for load in later]
    ranks = [rank for load in watched for rank in load["ranks"]]
    shares = [load["resident"] for turn in turns for load in turn]
    doubts = []
    if state is State.COLD and max(shares) > 0.01:
        doubts.append(f"{max(shares):.0%} of the files was in the page cache")
    if state is State.RESIDENT and min(shares) < 1:
        doubts.append(f"only {min(shares):.0%} of the files was in the page cache")
    if max(rates) > SPREAD * min(rates):
        doubts.append(f"from {min(rates):.2f} to {max(rates):.2f} GB/s: the machine was busy")
    return Row(
        side,
        first=statistics.median(nbytes / turn[0]["seconds"] / GB for turn in turns),
        then=statistics.median(rates),
        cpu=statistics.median(
            sum(rank["cpu_s"] for rank in load["ranks"]) / nbytes * GB for load in later
        ),
        host=max((rank["host"] for rank in ranks), default=0) / MIB,
        gpu=max((rank["gpu"] for rank in ranks), default=0) / MIB,
        drive=statistics.median(
            sum(rank["read_bytes"] for rank in load["ranks"]) / nbytes for load in later
        ),
        read=max(
            max(rank["rchar"], rank["read_bytes"]) / rank["bytes"] if rank["bytes"] else 0
            for load in later
            for rank in load["ranks"]
        ),
        doubts=doubts,
    )


def text(name: str, about: str, nbytes: int, case: Case, lines: list[dict[str, Any]]) -> str:
    """The tables of a case, of at most 80 columns, and the loaders without a measurement."""
    out = []
    for state in State:
        rows = []
        for side in case.sides:
            own = [one for one in lines if (one["loader"], one["state"]) == (side.name, state)]
            if (made := row(side, state, nbytes, own)) is not None:
                rows.append(made)
        if rows:
            out += ["", f"{name}, {state}: {about}", HEAD, *table(rows), *answers(rows)]
    for label, word in (("not measured", "missing"), ("FAILED", "failed")):
        reasons = {f"{label}: {line['loader']}: {line[word]}": 0 for line in lines if word in line}
        out += reasons
    return "\n".join(out)


def table(rows: list[Row]) -> Iterator[str]:
    """A line for each loader, the fastest first; its ratio is to the first loader of the case."""
    for one in sorted(rows, key=lambda row: -row.then):
        ratio = f"{one.then / rows[0].then:.2f}" if rows[0].side.kind == "ours" else ""
        yield (
            f"{one.side.name:29} {one.first:6.2f} {one.then:6.2f} {ratio:>5} {one.cpu:5.2f} "
            f"{one.host:6.0f} {one.gpu:6.0f} {one.drive:5.2f}"
        )


def answers(rows: list[Row]) -> Iterator[str]:
    """How our loader compares with the best peer and with each limit; doubts."""
    for ours in (one for one in rows if one.side.kind == "ours"):
        others = [(one.side.name, [one]) for one in rows if one.side.kind == "limit"]
        peers = [one for one in rows if one.side.kind == "peer"]
        if peers:
            best = max(peers, key=lambda row: row.then)
            others.insert(0, (f"the best peer, {best.side.name}", peers))
        yield f"{ours.side.name}:"
        for what, of in others:
            first = ours.first / max(one.first for one in of)
            then = ours.then / max(one.then for one in of)
            yield f"  first {first:.2f} x, then {then:.2f} x {what}"
        if (ranks := ours.side.ranks) > 1:
            own = ours.then / ranks if ours.side.shares else ours.then
            yield f"  each rank {own:.2f} GB/s, all ranks {own * ranks:.2f} GB/s"
        if ranks > 1 and ours.read:
            yield f"  each process read {ours.read:.2f} x the bytes of its tensors"
    for one in rows:
        yield from (f"doubt: {one.side.name}: {doubt}" for doubt in one.doubts)
