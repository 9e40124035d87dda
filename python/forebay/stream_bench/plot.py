"""Pass time over the line, by tokens: as text, with a mark for each method."""

from __future__ import annotations

import math
from typing import Any

from .table import over_line, range_over_line, ways_of

MARKS = "ox+*#@"
_SEVERAL = "&"


def drawn(result: dict[str, Any], width: int = 64, height: int = 14) -> str:
    """The plot; both axes are logarithmic."""
    points = sorted(result["points"], key=lambda point: int(point["tokens"]))
    if not points:
        return "nothing was measured"
    least, most = span(points)
    field = [[" "] * width for _ in range(height)]
    row_of = scale(least, most, height - 1)
    column_of = scale(points[0]["tokens"], points[-1]["tokens"], width - 1)
    line = height - 1 - round(row_of(1.0))
    field[line] = ["-"] * width
    named = dict(zip(ways_of(result), MARKS, strict=False))
    seen = set()
    for point in points:
        for way, found in point["ways"].items():
            row = height - 1 - round(row_of(over_line(found)))
            column = round(column_of(point["tokens"]))
            field[row][column] = _SEVERAL if (row, column) in seen else named[way]
            seen.add((row, column))
    heads = {0: most, height - 1: least, line: 1.0}
    lines = ["pass time / line of theory (ratio)"]
    for row, cells in enumerate(field):
        head = f"{heads[row]:.3f}" if row in heads else ""
        lines.append(f"{head:>8} |{''.join(cells).rstrip()}")
    lines += [f"{'':>8} +{'-' * width}", f"{'':>10}{_ticks(points, column_of, width)}"]
    legend = "  ".join(f"{mark} {way}" for way, mark in named.items())
    lines += [f"{'tokens of a pass':>{10 + width}}", f"{legend}  {_SEVERAL} several  --- the line"]
    return "\n".join(lines)


def span(points: list[dict[str, Any]], *, bars: bool = False) -> tuple[float, float]:
    """The range of the vertical axis: the line and all measurements."""
    ratios = [1.0]
    for point in points:
        for found in point["ways"].values():
            ratios.append(over_line(found))
            if bars:
                ratios += range_over_line(found) or ()
    # A minimum range, so that noise around the line is not magnified.
    return min(0.95, *ratios), max(1.05, *ratios)


def scale(least: float, most: float, length: float) -> Any:
    """Places on a logarithmic axis; a single value is in its middle."""
    wide = math.log(most / least)

    def place(value: float) -> float:
        return length * math.log(value / least) / wide if wide else length / 2

    return place


def _ticks(points: list[dict[str, Any]], column_of: Any, width: int) -> str:
    """The numbers of tokens below their columns, without those that would overlap."""
    cells, free = [" "] * width, 0
    for point in points:
        text = f"{point['tokens']:,}"
        begin = max(0, min(width - len(text), round(column_of(point["tokens"])) - len(text) // 2))
        if begin >= free:
            cells[begin : begin + len(text)] = text
            free = begin + len(text) + 1
    return "".join(cells).rstrip()
