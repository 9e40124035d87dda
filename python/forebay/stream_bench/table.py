"""What was measured, as people read it."""

from __future__ import annotations

from typing import Any


def theory(compute: float, transfer: float, turns: int) -> float:
    """The time of a pass of which nothing but its edge is more than compute or transfer alone.

    The edge is what nothing can hide: the first transfer, or the last compute.
    """
    edge = transfer if compute >= transfer else compute
    return max(compute, transfer) + edge / turns


def rows(result: dict[str, Any]) -> list[list[str]]:
    """A line for each number of tokens and way."""
    made = []
    for point in result["points"]:
        for way, found in point["ways"].items():
            made.append([
                f"{point['tokens']:,}",
                way,
                f"{point['compute_s'] / point['turns'] * 1e3:.2f}",
                f"{found['transfer_s'] / point['turns'] * 1e3:.2f}",
                f"{found['pass_s'] * 1e3:.1f}",
                f"{found['line_s'] * 1e3:.1f}",
                f"{found['pass_s'] / found['line_s']:.3f}",
                f"{found['pass_s'] / point['compute_s'] - 1:+.1%}",
                f"{found['cpu_s_per_gb']:.3f}",
            ])
    return made


HEAD = [
    "tokens",
    "way",
    "compute ms",
    "transfer ms",
    "pass ms",
    "line ms",
    "pass/line",
    "overhead",
    "CPU s/GB",
]


def drawn(result: dict[str, Any]) -> str:
    """The table."""
    lines = [HEAD, *rows(result)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]

    def line(cells: list[str]) -> str:
        named = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
        named[1] = f"{cells[1]:<{widths[1]}}"
        return "  ".join(named).rstrip()

    return "\n".join(line(cells) for cells in lines)


def free_from(result: dict[str, Any], way: str) -> int | None:
    """The fewest tokens from which a way costs less than one percent; ``None``: none of these."""
    found = None
    for point in sorted(result["points"], key=lambda point: -point["tokens"]):
        if way not in point["ways"]:
            return found
        if point["ways"][way]["pass_s"] > 1.01 * (
            point["compute_s"] + point["ways"][way]["transfer_s"] / point["turns"]
        ):
            return found
        found = point["tokens"]
    return found
