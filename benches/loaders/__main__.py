"""Loads one model by Forebay and by other loaders, and compares them: see ``docs/coming-from.md``."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

import forebay
import model
import processes
import table
from cases import CASES, Case, Side, State

PACKAGES = (
    "forebay", "torch", "safetensors", "kvikio-cu13", "kvikio-cu12", "instanttensor",
    "fastsafetensors", "runai-model-streamer", "flashpack",
)  # fmt: skip


def main() -> int:
    """Measures the cases. Returns 1 if a loader failed, 2 if the run cannot start."""
    given = arguments()
    try:
        devices = devices_of(given.device)
        models = {name: files(given, CASES[name]) for name in given.case}
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with open(given.out, "a") as out:
        samples = Samples(out)
        samples.add({"command": sys.argv, **environment(given.path, devices)})
        for name, paths in models.items():
            with tempfile.TemporaryDirectory(prefix=".loaders-", dir=paths[0].parent) as folder:
                measure(given, name, paths, devices, Path(folder), samples)
    return 1 if samples.failed else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benches/loaders", description=__doc__)
    add = parser.add_argument
    add("path", type=Path, metavar="PATH", help="a safetensors file or a folder of them")
    add("--make", metavar="GIB", type=float, help="write each case's model of this size into PATH")
    add("--case", action="append", choices=CASES, help="a case to measure (load); may be repeated")
    add("--loader", action="append", metavar="TEXT", help="only loaders with this in the name")
    add("--state", action="append", choices=State, type=State, help="only this state of the files")
    add("--device", default="auto", help="`cuda`, `cpu` or `auto`: GPUs if there are any")
    add("--rounds", type=int, default=5, metavar="N", help="timed rounds; 0: only checks (5)")
    add("--loads", type=int, default=4, metavar="N", help="timed loads of each process (4)")
    add("--timeout", type=float, default=600, metavar="S", help="time limit of a process (600)")
    add("--out", type=Path, default="loaders.jsonl", help="appends samples to it (loaders.jsonl)")
    given = parser.parse_args()
    if given.rounds < 0 or given.loads < 1:
        parser.error("`--rounds` must be 0 or more, and `--loads` 1 or more")
    given.path = given.path.absolute()
    given.case = given.case or ["load"]
    return given


def devices_of(wanted: str) -> list[str]:
    """The devices that ranks load to."""
    import torch

    there = torch.cuda.is_available()
    if wanted not in ("auto", "cpu", "cuda") or wanted == "cuda" and not there:
        raise ValueError(f"`--device` cannot be `{wanted}`: use `cpu`, or `cuda` if there is a GPU")
    if wanted == "cpu" or not there:
        return ["cpu"]
    return [f"cuda:{number}" for number in range(torch.cuda.device_count())]


def files(given: argparse.Namespace, case: Case) -> list[Path]:
    """The files of a case's model; `--make` makes them first."""
    if given.make is None:
        return model.files(given.path)
    folder = given.path / f"{given.make:g}GiB-{case.tensors}-tensors-{case.shards}-files"
    model.make(folder, int(given.make * 2**30), case.tensors, case.shards)
    return model.files(folder)


def environment(path: Path, devices: list[str]) -> dict[str, Any]:
    """The machine as `forebay doctor --tree` describes it, and the versions of all loaders."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    seen = forebay.map(path if path.exists() else path.parent)
    found = {"environment": seen["environment"], "gpus": seen["gpus"]}
    return {"devices": devices, "python": platform.python_version(), "packages": versions, **found}


class Samples:
    """Lines of JSON, written at once, so that a crash loses none."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self.failed = False

    def add(self, line: dict[str, Any]) -> None:
        print(json.dumps(line, default=str), file=self._out, flush=True)
        self.failed |= "failed" in line


def measure(
    given: argparse.Namespace,
    name: str,
    paths: list[Path],
    devices: list[str],
    folder: Path,
    samples: Samples,
) -> None:
    """All rounds of one case, and its table. The first round measures memory and checks bytes."""
    case = CASES[name]
    nbytes = sum(tensor.nbytes for _, _, tensor in model.mapped(paths))
    sides = [side for side in case.sides if wanted(side, given.loader)]
    lines: list[dict[str, Any]] = []
    stopped: set[tuple[str, State]] = set()
    for number in range(-1, given.rounds):
        for side, state in order(sides, given.state or list(State), number):
            key = (side.name, state)
            if key in stopped:
                continue
            turn = {
                "case": name,
                "loader": side.name,
                "loads": 1 if number < 0 else given.loads,
                "watched": number < 0,
            }
            found = processes.run(turn, side, state, paths, devices, folder, given.timeout)
            line = {"case": name, "loader": side.name, "state": state, "round": number, **found}
            lines.append(line)
            samples.add(line)
            reason = found.get("missing") or found.get("failed")
            if reason:
                stopped.add(key)
            print(f"{name}, {state}: {side.name}: {reason or 'done'}", file=sys.stderr, flush=True)
    count = f"{nbytes / 1e9:.3f} GB in {len(paths)} file{'s' if len(paths) > 1 else ''}"
    used = "load and sum" if devices == ["cpu"] else "load"
    about = f"{count}, {used}, {given.rounds} rounds x {given.loads} loads"
    print(table.text(name, about, nbytes, case, lines))


def wanted(side: Side, texts: list[str] | None) -> bool:
    return texts is None or any(text in side.name for text in texts)


def order(sides: list[Side], states: list[State], number: int) -> list[tuple[Side, State]]:
    """The turns of a round. Each round begins with another side, and every second one runs
    backwards, so that no side always comes after the same one."""
    turns_of = []
    for state in State:
        taking = [side for side in sides if state in side.states and state in states]
        step = -1 if number % 2 else 1
        turns_of += [
            (taking[(number + step * place) % len(taking)], state) for place in range(len(taking))
        ]
    return turns_of


if __name__ == "__main__":
    if sys.argv[1:] == ["--turn"]:
        import turn

        turn.main()
    sys.exit(main())
