"""The results of a case: medians, ratios of medians, and doubts."""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from cases import Case, Side, State

GB, MIB = 1e9, 2**20
SPREAD = 2.0
"""The ratio of the fastest to the slowest load above which the machine counts as busy."""

HEAD = (
    f"{'loader':28} {'first':>6} {'then':>6} {'GPUs':>5} {'ratio':>5} {'s/GB':>5} {'host':>6} "
    f"{'GPU':>6} {'drive':>5}"
)

Line: TypeAlias = dict[str, Any]
AT = ("case", "loader", "state", "round", "load", "seconds", "resident")
OF_RANK = ("begin", "end", "cpu_s", "bytes", "rchar", "read_bytes", "host", "gpu")


class Samples:
    """A CSV file: a line per process and load, flushed immediately."""

    def __init__(self, path: Path) -> None:
        self._out = open(path, "a")
        self._rows = csv.writer(self._out)
        self.failed = False
        if not self._out.tell():
            self._rows.writerow([*AT, "rank", *OF_RANK])

    def add(self, line: Line) -> Line:
        for rank, found in enumerate(line.get("ranks", [])):
            values = [line[name] for name in AT] + [rank] + [found[name] for name in OF_RANK]
            self._rows.writerow(
                [round(one, 6) if isinstance(one, float) else one for one in values]
            )
        self._out.flush()
        self.failed |= "failed" in line
        if reason := line.get("missing") or line.get("failed"):
            print(f"{line['loader']}: {reason}\n{line.get('talk', '')}", file=sys.stderr, flush=True)
        return line


@dataclass(frozen=True)
class Row:
    """A loader in one state: medians over all rounds."""

    side: Side
    first: float
    """Bytes of the model per second, in GB/s, of the first load of a process."""
    then: float
    """The same of its further loads, or of the first if there are no others."""
    gpus: float
    """GB/s of all GPUs in the further loads."""
    cpu: float
    """CPU seconds per GB."""
    host: float
    """MiB of host memory at the peak, beyond the tensors."""
    gpu: float
    """MiB of GPU memory at the peak, beyond the tensors."""
    drive: float
    """Bytes that all processes had drives read, over the bytes of the model."""
    doubts: list[str]


def row(side: Side, state: State, nbytes: int, lines: list[Line]) -> Row | None:
    """The medians; `None` if nothing was measured, or the loader failed."""
    timed = [line for line in lines if line["load"] >= 0]
    if not timed or any("failed" in line for line in lines):
        return None
    ranks = [rank for line in lines for rank in line.get("ranks", [])]
    first = [line for line in timed if line["load"] == 0]
    later = [line for line in timed if line["load"] > 0] or first
    rates = [nbytes / line["seconds"] / GB for line in later]
    shares = [line["resident"] for line in timed]

    def total(name: str, line: Line) -> float:
        return float(sum(rank[name] for rank in line["ranks"]))

    doubts = []
    if state is State.COLD and max(shares) > 0.01:
        doubts.append(f"{max(shares):.0%} of the files was in the page cache")
    if state is State.RESIDENT and min(shares) < 1:
        doubts.append(f"only {min(shares):.0%} of the files was in the page cache")
    if max(rates) > SPREAD * min(rates):
        doubts.append(f"from {min(rates):.2f} to {max(rates):.2f} GB/s: the machine was busy")
    return Row(
        side,
        first=statistics.median(nbytes / line["seconds"] / GB for line in first),
        then=statistics.median(rates),
        gpus=statistics.median(total("bytes", line) / line["seconds"] / GB for line in later),
        cpu=statistics.median(total("cpu_s", line) / nbytes * GB for line in later),
        host=max(rank["host"] for rank in ranks) / MIB,
        gpu=max(rank["gpu"] or 0 for rank in ranks) / MIB,
        drive=statistics.median(total("read_bytes", line) / nbytes for line in later),
        doubts=doubts,
    )


def text(name: str, about: str, nbytes: int, case: Case, lines: list[Line]) -> str:
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
            f"{one.side.name:28} {one.first:6.2f} {one.then:6.2f} {one.gpus:5.1f} {ratio:>5} "
            f"{one.cpu:5.2f} {one.host:6.0f} {one.gpu:6.0f} {one.drive:5.2f}"
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
    for one in rows:
        yield from (f"doubt: {one.side.name}: {doubt}" for doubt in one.doubts)
