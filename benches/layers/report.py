"""The measurements as a table for people."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

#: How much longer than its reference a pass may take and still count as equally long: 1.5 %.
AS_LONG = 1.015

Found = dict[str, Any]

#: Head and cell of each column.
COLUMNS: list[tuple[str, Callable[[Found, str, Found], str]]] = [
    ("tokens", lambda point, way, found: f"{point['tokens']:,}"),
    ("method", lambda point, way, found: way),
    ("compute ms", lambda point, way, found: f"{point['compute_s'] / point['turns'] * 1e3:.2f}"),
    ("transfer ms", lambda point, way, found: f"{found['transfer_layer_s'] * 1e3:.2f}"),
    ("reads", lambda point, way, found: f"{found['reads']:.4g}"),
    ("pass ms", lambda point, way, found: f"{found['pass_s'] * 1e3:.1f}"),
    ("line ms", lambda point, way, found: f"{found['line_s'] * 1e3:.1f}"),
    ("overhead", lambda point, way, found: f"{over_line(found) - 1:+.1%}"),
    ("from rest", lambda point, way, found: _from_rest(found)),
    ("over compute", lambda point, way, found: f"{found['pass_s'] / point['compute_s'] - 1:+.1%}"),
    ("stall ms", lambda point, way, found: f"{found['stall_s'] * 1e3:.1f}"),
    ("compute ratio", lambda point, way, found: f"{found['compute_ratio']:.3f}"),
    ("CPU s/GB", lambda point, way, found: f"{found['cpu_s_per_gb']:.3f}"),
]

LEGEND = """\
compute, transfer: of a layer, each alone in this run
transfer: over the link, or by plain reads of the drive if these take longer
reads: layers loaded in a pass; layers on the GPU at the turn are not read again
line: the least time of a pass with the method's buffers, this transfer and
  this compute, alone or during transfers if that took less
overhead: a pass beyond its line; from a drive, beyond that of its own round
from rest: the overhead of a turn's first pass, before which the method was idle
over compute: a pass beyond compute alone
stall: how long the compute waits in a pass
compute ratio: compute during transfers, divided by compute alone"""


def _from_rest(found: Found) -> str:
    if found["rested_s"] is None:
        return "-"
    return f"{found['rested_s'] / found['line_s'] - 1:+.1%}"


def over_line(found: Found) -> float:
    """The time of a pass as a multiple of its line."""
    return float(found["over_line"])


def drawn(result: Found) -> str:
    """The table: a row for each number of tokens and method."""
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
    """Whether a pass takes only as long as compute and the one transfer that cannot be hidden."""
    least = point["compute_s"] + found["transfer_layer_s"]
    return bool(found["pass_s"] <= AS_LONG * least)


def is_on_line(_: Found, found: Found) -> bool:
    """Whether a pass takes as long as its line, whatever binds."""
    return over_line(found) <= AS_LONG


def tokens_from(result: Found, way: str, holds: Callable[[Found, Found], bool]) -> int | None:
    """The tokens from which on a condition holds at every measured number; ``None`` at none."""
    found = None
    for point in sorted(result["points"], key=lambda point: -point["tokens"]):
        if way not in point["ways"] or not holds(point, point["ways"][way]):
            return found
        found = int(point["tokens"])
    return found


def free_from(result: Found) -> str:
    """From how many tokens on each method is free, and on its line."""
    lines = []
    for way in ways_of(result):
        free = _from(tokens_from(result, way, is_free))
        line = _from(tokens_from(result, way, is_on_line))
        lines.append(f"{way}: free from {free}; on its line from {line}")
    return "\n".join([
        *lines,
        "free: a pass takes at most 1.5 % more than compute alone and its first transfer",
        "on its line: at most 1.5 % more than the line, whether compute or the link binds",
        "from: at this and every greater number of tokens that was measured",
    ])  # fmt: skip


def planned(result: Found) -> str:
    """Measured over predicted times, for each number of tokens with predictions."""
    lines = []
    for point in result["points"]:
        if not (trials := point.get("planned")):
            continue
        ratios = [median(trial["passes_s"]) / trial["predicted_s"] for trial in trials]
        lines.append(
            f"predicted at {point['tokens']:,} tokens: a pass takes {median(ratios):.3f} of the "
            f"first prediction ({_spread(ratios)}, {len(trials)} streams)"
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
                f", and {median(each):.3f} of its own ({_spread(each)}, {len(each)} passes)"
            )
    return "\n".join(lines)


def plain_reads(found: Found | None) -> str:
    """The kind of the plain reads; empty if no drive is read."""
    if found is None:
        return ""
    how = "with" if found["past_page_cache"] else "without"
    size = found["request_bytes"] >> 20
    return f"plain reads: {found['threads']} threads, block size {size} MiB, {how} O_DIRECT"


def _spread(ratios: list[float]) -> str:
    off = median(abs(ratio - 1) for ratio in ratios)
    return f"{min(ratios):.3f} to {max(ratios):.3f}, {off:.1%} off"


def _from(tokens: int | None) -> str:
    return "none of these" if tokens is None else f"{tokens:,} tokens on"


def strays(result: Found) -> str:
    """A warning for each method that had bytes from another source than requested."""
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
    """All methods that were measured at some point, in their order."""
    return list(dict.fromkeys(way for point in result["points"] for way in point["ways"]))
