"""The measurements as a table for people."""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: What a pass may take more than it is held against, and still be called as long: 1.5 %.
AS_LONG = 1.015

Found = dict[str, Any]

#: Head and cell of each column.
COLUMNS: list[tuple[str, Callable[[Found, str, Found], str]]] = [
    ("tokens", lambda point, way, found: f"{point['tokens']:,}"),
    ("way", lambda point, way, found: way),
    ("compute ms", lambda point, way, found: f"{point['compute_s'] / point['turns'] * 1e3:.2f}"),
    ("transfer ms", lambda point, way, found: f"{found['transfer_layer_s'] * 1e3:.2f}"),
    ("reads", lambda point, way, found: f"{found['reads']:.4g}"),
    ("pass ms", lambda point, way, found: f"{found['pass_s'] * 1e3:.1f}"),
    ("line ms", lambda point, way, found: f"{found['line_s'] * 1e3:.1f}"),
    ("overhead", lambda point, way, found: f"{over_line(found) - 1:+.1%}"),
    ("from rest", lambda point, way, found: _from_rest(found)),
    ("over compute", lambda point, way, found: f"{found['pass_s'] / point['compute_s'] - 1:+.1%}"),
    ("stall ms", lambda point, way, found: f"{found['stall_s'] * 1e3:.1f}"),
    ("compute beside", lambda point, way, found: f"{found['compute_beside']:.3f}"),
    ("CPU s/GB", lambda point, way, found: f"{found['cpu_s_per_gb']:.3f}"),
]

LEGEND = """\
compute, transfer: of a layer, each alone in this run; over all turns of a pass for compute
transfer: over the link; from a drive as plain reads past the page cache bring it, where that takes longer
reads: layers that come in a pass; what is on the GPU at the turn is not read again
line: what a pass takes at best with the way's buffers, this transfer and this compute, or the same beside where that took less
overhead: a pass beyond its line, from a drive each with the plain reads of its round; over compute: beyond compute alone
from rest: the overhead of a turn's first pass, before which the way had nothing to do
stall: what the compute waits in a pass
compute beside: the compute's time while layers come, to the same alone"""


def _from_rest(found: Found) -> str:
    if found["rested_s"] is None:
        return "-"
    return f"{found['rested_s'] / found['line_s'] - 1:+.1%}"


def over_line(found: Found) -> float:
    """How many times its line a pass takes."""
    return float(found["over_line"])


def range_over_line(found: Found) -> tuple[float, float] | None:
    """The same of the shortest pass and of the longest; ``None`` where each has a line of its own."""
    if not math.isclose(over_line(found), found["pass_s"] / found["line_s"], rel_tol=1e-9):
        return None
    return found["pass_low_s"] / found["line_s"], found["pass_high_s"] / found["line_s"]


def drawn(result: Found) -> str:
    """The table: a line for each number of tokens and way."""
    lines = [[head for head, _ in COLUMNS]]
    for point in result["points"]:
        for way, found in point["ways"].items():
            lines.append([cell(point, way, found) for _, cell in COLUMNS])
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]

    def line(cells: list[str]) -> str:
        named = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
        named[1] = f"{cells[1]:<{widths[1]}}"
        return "  ".join(named).rstrip()

    return "\n".join(line(cells) for cells in lines)


def is_free(point: Found, found: Found) -> bool:
    """Whether a pass takes as long as compute alone and the one transfer that nothing can hide."""
    least = point["compute_s"] + found["transfer_layer_s"]
    return bool(found["pass_s"] <= AS_LONG * least)


def is_on_line(_: Found, found: Found) -> bool:
    """Whether a pass takes as long as theory says, whatever binds."""
    return over_line(found) <= AS_LONG


def tokens_from(result: Found, way: str, holds: Callable[[Found, Found], bool]) -> int | None:
    """The tokens from which something holds at every measured number; ``None``: at none."""
    found = None
    for point in sorted(result["points"], key=lambda point: -point["tokens"]):
        if way not in point["ways"] or not holds(point, point["ways"][way]):
            return found
        found = int(point["tokens"])
    return found


def free_from(result: Found) -> str:
    """A line for each way."""
    lines = []
    for way in ways_of(result):
        free = _from(tokens_from(result, way, is_free))
        line = _from(tokens_from(result, way, is_on_line))
        lines.append(f"{way}: free from {free}; on its line from {line}")
    return "\n".join([
        *lines,
        "free: a pass takes at most 1.5 % more than compute alone and its first transfer",
        "on its line: at most 1.5 % more than the line, whether compute or the link binds",
        "from: there, and at every greater number of tokens that was measured",
    ])  # fmt: skip


def planned(result: Found) -> str:
    """A line for each number of tokens at which passes were predicted."""
    lines = []
    for point in result["points"]:
        if not (trials := point.get("planned")):
            continue
        ratios = [median(trial["passes_s"]) / trial["predicted_s"] for trial in trials]
        lines.append(
            f"predicted at {point['tokens']:,} tokens: a pass takes {median(ratios):.3f} of what was "
            f"predicted ({_spread(ratios)}, {len(trials)} streams)"
        )
        each = [
            took / predicted
            for trial in trials
            for took, predicted in zip(
                trial["passes_s"], trial.get("predicted_each_s", []), strict=False
            )
        ]
        if each:
            lines[-1] += (
                f", and {median(each):.3f} of what was by the pass before it ({_spread(each)}, "
                f"{len(each)} passes)"
            )
    return "\n".join(lines)


def plain_reads(found: Found | None) -> str:
    """How the drive was read that lines are of; nothing where no drive takes part."""
    if found is None:
        return ""
    past = "past" if found["past_page_cache"] else "through, for want of O_DIRECT,"
    size = found["request_bytes"] >> 20
    return f"plain reads: {found['threads']} threads that read {size} MiB {past} the page cache"


def _spread(ratios: list[float]) -> str:
    off = median(abs(ratio - 1) for ratio in ratios)
    return f"{min(ratios):.3f} to {max(ratios):.3f}, {off:.1%} off"


def _from(tokens: int | None) -> str:
    return "none of these" if tokens is None else f"{tokens:,} tokens on"


def strays(result: Found) -> str:
    """A warning for each way that had bytes from another source than requested."""
    lines = []
    for point in result["points"]:
        for way, found in point["ways"].items():
            known = found["bytes"]
            if "drive_bytes" not in known:
                continue
            cached = known.get("file_bytes", 0) - known["drive_bytes"]
            stray, place = {
                "drive": (cached, "the page cache"),
                "half": (cached, "the page cache"),
            }.get(result["from"], (known["drive_bytes"], "the drive"))
            whole = sum(bytes_ for name, bytes_ in known.items() if name != "drive_bytes")
            if stray > 0:
                at = f"{way} at {point['tokens']:,} tokens"
                lines.append(f"warning: {at}: {stray / whole:.1%} of its bytes came from {place}")
    return "\n".join(lines)


def ways_of(result: Found) -> list[str]:
    """All ways that were measured anywhere, in their order."""
    return list(dict.fromkeys(way for point in result["points"] for way in point["ways"]))
