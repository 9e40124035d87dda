"""What many turns come to: medians, and their ratios. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

_GB = 1e9
_COLD_MOST = 0.01
"""How much of a cold file may be in the page cache."""


@dataclass(frozen=True)
class Row:
    """One side in one setting, the file in one state; speeds in GB/s, medians over all rounds."""

    state: str
    side: str
    setting: str
    rounds: int
    first: float
    """Of each process's first load."""
    steady: float | None
    """Of all further loads."""
    steady_least: float | None
    steady_most: float | None
    cpu_s_per_gb: float
    host_peak: float
    gpu_extra: float
    resident: float
    """How much of the file was in the page cache when loads began, at the most or at the least,
    whichever is further from what it should have been."""

    @property
    def speed(self) -> float:
        """What is compared: the steady speed, or the first where there is no other."""
        return self.first if self.steady is None else self.steady


def rows(turns: Iterable[dict[str, Any]]) -> list[Row]:
    """A row for each side, setting and state that was measured, the fastest of a state first."""
    by_key: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for turn in turns:
        if "loads" in turn:
            key = (turn["state"], turn["side"], turn["setting"])
            by_key.setdefault(key, []).append(turn)
    made = [_row(*key, found) for key, found in by_key.items()]
    return sorted(made, key=lambda row: (row.state != "resident", -row.speed))


def _row(state: str, side: str, setting: str, turns: list[dict[str, Any]]) -> Row:
    first = [_speed(turn["loads"][0]) for turn in turns]
    later = [load for turn in turns for load in turn["loads"][1:]]
    steady = [_speed(load) for load in later]
    costs = later or [turn["loads"][0] for turn in turns]
    shares = [load["resident"] for turn in turns for load in turn["loads"]]
    return Row(
        state=state,
        side=side,
        setting=setting,
        rounds=len(turns),
        first=statistics.median(first),
        steady=statistics.median(steady) if steady else None,
        steady_least=min(steady, default=None),
        steady_most=max(steady, default=None),
        cpu_s_per_gb=statistics.median(load["cpu_s"] / load["bytes"] * _GB for load in costs),
        host_peak=statistics.median(turn["host_peak"] for turn in turns),
        gpu_extra=statistics.median(turn["gpu_extra"] for turn in turns),
        resident=max(shares) if state == "cold" else min(shares),
    )


def plain(made: list[Row]) -> list[dict[str, Any]]:
    """Rows as plain data, with their ratios."""
    return [{**asdict(row), "of_forebay": _ratio(row, made)} for row in made]


def warnings(made: list[Row]) -> list[str]:
    """What makes a row other than it says."""
    said = []
    for row in made:
        who = f"{row.side} ({row.setting}), {row.state}"
        if row.state == "cold" and row.resident > _COLD_MOST:
            said.append(f"{who}: {row.resident:.0%} of the file was in the page cache")
        if row.state == "resident" and row.resident < 1:
            said.append(f"{who}: only {row.resident:.0%} of the file was in the page cache")
        if row.steady is None:
            said.append(f"{who}: first loads only, which are compared: give `--loads 2` or more")
        elif row.steady_least and row.steady_most and row.steady_most > 2 * row.steady_least:
            said.append(
                f"{who}: from {row.steady_least:.2f} to {row.steady_most:.2f} GB/s: the machine "
                "was busy, or more rounds are needed"
            )
    return said


def table(made: list[Row]) -> str:
    """Rows as a table in Markdown, a part for each state."""
    head = (
        "| Side | Setting | First GB/s | Then GB/s | Of Forebay | CPU s/GB | Host MB "
        "| GPU MB |\n|---|---|---|---|---|---|---|---|"
    )
    parts = []
    for state in dict.fromkeys(row.state for row in made):
        lines = [_line(row, made) for row in made if row.state == state]
        parts.append("\n".join([f"### {state.capitalize()}", "", head, *lines]))
    return "\n\n".join(parts)


def _line(row: Row, made: list[Row]) -> str:
    ratio = _ratio(row, made)
    cells = [
        row.side,
        row.setting,
        f"{row.first:.2f}",
        "" if row.steady is None else f"{row.steady:.2f}",
        "" if ratio is None else f"{ratio:.2f}",
        f"{row.cpu_s_per_gb:.3f}",
        *(f"{nbytes / 1e6:.0f}" for nbytes in (row.host_peak, row.gpu_extra)),
    ]
    return f"| {' | '.join(cells)} |"


def _ratio(row: Row, made: list[Row]) -> float | None:
    """A side's speed over that of Forebay as it is by default, in the same state."""
    ours = [one for one in made if (one.side, one.setting) == ("forebay", "default")]
    same = [one for one in ours if one.state == row.state]
    return row.speed / same[0].speed if same else None


def _speed(load: dict[str, Any]) -> float:
    """In GB/s."""
    return float(load["bytes"] / load["seconds"] / _GB)
