"""Runs the `forebay` command, and returns its JSON with a table and a picture."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from ._command import program
from ._errors import Error, RequestError

if TYPE_CHECKING:
    from ._types import Path


class Report(dict[str, Any]):
    """The command's JSON, with a table and a picture.

    docs/json-schema.md of the repository describes the keys. It is a plain dictionary. A notebook shows the table and the picture; ``print`` the table.
    """

    def __init__(self, verb: str, data: Mapping[str, Any]) -> None:
        super().__init__(data)
        self.verb = verb

    def rows(self) -> list[dict[str, Any]]:
        """The rows of the table, each a dictionary."""
        return _ROWS[self.verb](self)

    def _notes(self) -> list[str]:
        notes = self.get("warnings", [self["sentence"]] if "sentence" in self else [])
        notes = [*self.get("doubts", []), *notes]
        return [note["text"] if isinstance(note, dict) else note for note in notes]

    def __repr__(self) -> str:
        rows = self.rows()
        if not rows:
            return f"<forebay.{self.verb}: nothing>"
        table = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
        widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in table]
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        rows = self.rows()
        if not rows:
            return f"<p>forebay {escape(self.verb)}: nothing</p>"
        head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(_text(v))}</td>" for v in row.values()) + "</tr>"
            for row in rows
        )
        notes = "".join(f"<p>{escape(warning)}</p>" for warning in self._notes())
        return f"<table><tr>{head}</tr>{body}</table>{self.plot()}{notes}"

    def plot(self) -> str:
        """A picture of the rates as SVG; empty without rates."""
        rows = [row for row in self.rows() if isinstance(row.get("GB/s"), (int, float))]
        if not rows:
            return ""
        most, height = max(row["GB/s"] for row in rows) or 1.0, 18
        parts = []
        for number, row in enumerate(rows):
            width, top = 380 * row["GB/s"] / most, number * height
            label = escape(" ".join(_text(v) for v in list(row.values())[:3] if v is not None))
            parts.append(
                f'<text x="0" y="{top + 13}">{label}</text>'
                f'<rect x="220" y="{top + 3}" width="{width:.1f}" height="12" fill="#3b7dd8"/>'
                f'<text x="{224 + width:.1f}" y="{top + 13}">{row["GB/s"]:.2f}</text>'
            )
        size = f'width="680" height="{len(rows) * height + 4}"'
        style = 'font-family="sans-serif" font-size="11" fill="currentColor"'
        return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>{"".join(parts)}</svg>'


def bench(*paths: Path, **options: Any) -> Report:
    """Measures all methods to move bytes, and the limits of the machine.

    The options are the command's: ``size="8G"``, ``gpu="none"``, ``cache="warm"``, ``repeats=5``.
    Lists make a row for each combination: ``block_size=["64K", "1M"], depth=[1, 32]``. A mismatch of
    data raises `Error`, whose ``report`` has the measurements.
    """
    return _run("bench", paths, options)


def map(*paths: Path, **options: Any) -> Report:
    """Finds the drives below paths, their distance from each GPU, and what limits speed."""
    return _run("doctor", paths, {"map": True, **options}, "map")


def doctor(path: Path | None = None, **options: Any) -> Report:
    """Finds what prevents direct transfers between drive and GPU, and what to do.

    The default path is the current folder, or that of a record (``fixture="DIR"``). A few MiB are
    moved by each route as well. ``found["sentence"]`` says how bytes travel here,
    ``found["broken"]`` whether something that was set up does not work.
    """
    return _run("doctor", [] if path is None else [path], options)


def _run(
    verb: str, paths: Sequence[Path], options: Mapping[str, Any], kind: str | None = None
) -> Report:
    import errno
    import json
    import subprocess

    command = [*program(), verb, "--format=json"]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            command.append(flag)
        elif isinstance(value, (list, tuple)):
            command += [flag, ",".join(str(item) for item in value)]
        elif value is not None and value is not False:
            command += [flag, str(value)]
    command += ["--", *(os.fsdecode(path) for path in paths)]
    # The text on stderr counts if there is no data, or if the verb failed.
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    parse = _records if verb == "bench" else json.loads
    found = Report(kind or verb, parse(done.stdout)) if done.stdout else None
    # A `doctor` that finds something broken ends with 1, and its report says what.
    if found is not None and (done.returncode == 0 or verb == "doctor"):
        return found
    lines = done.stderr.decode(errors="replace").splitlines()
    errors = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    behind = [line.partition("caused by: ")[2] for line in lines if "caused by: " in line]
    first = errors or lines[: found is None] or [_wrong(found, done.returncode)]
    text = ": ".join([f"forebay {verb}", first[0], *behind])
    no_sense = done.returncode == 2
    raised, number = (RequestError, errno.EINVAL) if no_sense else (Error, errno.EIO)
    error = raised(number, text)
    hints = [line.removeprefix("hint: ") for line in lines if line.startswith("hint: ")]
    if found is not None:
        error.report = found
        hints.append("`report` of this exception has the measurements")
    error.hint = "; ".join(hints) or None
    raise error


def _records(text: bytes) -> dict[str, Any]:
    """The records of a results file, by their kinds."""
    import json

    kinds = ("limits", "samples", "doubts", "warnings")
    found: dict[str, Any] = {"run": None, **{kind: [] for kind in kinds}}
    for line in text.splitlines():
        record = json.loads(line)
        kind = record.pop("record")
        if kind == "run":
            found["run"] = record
        else:
            found[f"{kind}s"].append(record)
    return found


def _wrong(found: Report | None, code: int) -> str:
    """Why a command failed that printed its data."""
    rows = found.rows() if found is not None and found.verb == "bench" else []
    wrong = [f"{row['method']} ({row['direction']})" for row in rows if row["verified"] is False]
    return f"wrong data: {', '.join(wrong)}" if wrong else f"exit code {code}"


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}"
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)


def _bench_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    import json
    from statistics import median

    points: dict[str, list[dict[str, Any]]] = {}
    for sample in data["samples"]:
        points.setdefault(json.dumps(sample["point"]), []).append(sample)
    rows = []
    for samples in points.values():
        point, measured = samples[0]["point"], [s["measured"] for s in samples if s["measured"]]
        percent = point["read_percent"]
        bound = (measured[-1]["bound"] or {}) if measured else {}
        costs = [one["cpu"]["s_per_gb"] for one in measured if one["cpu"] is not None]
        known = [cost for cost in costs if cost is not None]
        rows.append(
            {
                "method": point["method"],
                "direction": {100: "read", 0: "write"}.get(percent, f"mixed:{percent}"),
                "cache": {"resident": "warm"}.get(point["cache"], point["cache"]),
                "block size": point["request_size"],
                "depth": point["depth"],
                "GB/s": median(o["bytes_per_second"] for o in measured) / 1e9 if measured else None,
                "of limit": min(bound["share"], 1.0) if bound.get("share") else None,
                "CPU s/GB": median(known) if known else None,
                "route": measured[-1]["route"] if measured else None,
                "verified": all(o["verified"] for o in measured) if measured else None,
            }
        )
    return rows


def _map_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    drives = {drive["id"]: drive for drive in data["drives"]}
    rows = []
    for one in data["maps"]:
        for drive in one["drives"] or [None]:
            known = drives.get(drive, {})
            paths = known.get("paths") or [{}]
            used = next((path for path in paths if path.get("live")), paths[0])
            rows.append(
                {
                    "path": one["path"],
                    "queue": (one.get("queue") or {}).get("layout"),
                    "drive": known.get("name"),
                    "model": known.get("model"),
                    "bytes": known.get("size"),
                    "transport": used.get("transport"),
                    "NUMA node": used.get("numa_node"),
                }
            )
    return rows


def _doctor_rows(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    names = ["state", "name", "seen", "step"]
    return [{name: check[name] for name in names} for check in data["checks"]]


_ROWS = {"bench": _bench_rows, "map": _map_rows, "doctor": _doctor_rows}
