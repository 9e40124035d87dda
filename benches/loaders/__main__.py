"""Loads one model by Forebay and by other loaders, and compares them: see ``docs/coming-from.md``."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import forebay
import model
import processes
import table
from cases import CASES, Case, Side, State

PACKAGES = (
    "forebay", "torch", "safetensors", "kvikio-cu13", "kvikio-cu12", "instanttensor",
    "fastsafetensors", "runai-model-streamer", "flashpack",
)  # fmt: skip
STARTED = time.monotonic()


def main() -> int:
    """Measures the cases. Returns 1 if a loader failed, 2 if the run cannot start."""
    given = arguments()
    try:
        devices = devices_of(given.device)
        models = {name: files(given, CASES[name]) for name in given.case}
        given.out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    found = {"command": sys.argv, **environment(given.path, devices)}
    (given.out / "environment.json").write_text(json.dumps(found, indent=1, default=str))
    samples = table.Samples(given.out / "samples.csv")
    for paths in {str(paths): paths for paths in models.values()}.values():
        names = [name for name, used in models.items() if used == paths]
        with tempfile.TemporaryDirectory(prefix=".loaders-", dir=paths[0].parent) as folder:
            text = measure(given, names, paths, devices, Path(folder), samples)
        print(text, flush=True)
        with open(given.out / "tables.txt", "a") as tables:
            print(text, file=tables)
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
    add("--rounds", type=int, default=5, metavar="N", help="rounds of new processes (5)")
    add("--loads", type=int, default=4, metavar="N", help="timed loads of each process (4)")
    add("--together", type=int, default=1, metavar="N", help="loaders that load in turn (1)")
    add("--limit", type=float, default=math.inf, metavar="S", help="no timed load starts after S seconds")
    add("--timeout", type=float, default=600, metavar="S", help="time limit of a load (600)")
    add("--out", type=Path, default="loaders", help="folder of samples and tables (loaders)")
    given = parser.parse_args()
    if min(given.rounds, given.loads, given.together) < 1:
        parser.error("`--rounds`, `--loads` and `--together` must be 1 or more")
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


Turn: TypeAlias = tuple[str, Side]
"""The name of a case, and a loader of it."""


def measure(
    given: argparse.Namespace,
    names: list[str],
    paths: list[Path],
    devices: list[str],
    folder: Path,
    samples: table.Samples,
) -> str:
    """All rounds of the cases of one model; returns their tables."""
    nbytes = sum(tensor.nbytes for _, _, tensor in model.mapped(paths))
    sides = [(name, side) for name in names for side in CASES[name].sides
             if wanted(side, given.loader)]  # fmt: skip
    lines: list[table.Line] = []
    for number in range(given.rounds):
        for state in given.state or list(State):
            ended = {(one["case"], one["loader"]) for one in lines
                     if one["state"] == state and not one.get("ranks")}  # fmt: skip
            turns = [turn for turn in order(sides, state, number)
                     if (turn[0], turn[1].name) not in ended]  # fmt: skip
            for at in range(0, len(turns), given.together):
                batch = Batch(given, state, number, samples)
                batch.run(turns[at : at + given.together], paths, devices, folder)
                lines += batch.lines
    count = f"{nbytes / 1e9:.3f} GB in {len(paths)} file{'s' if len(paths) > 1 else ''}"
    used = "load and sum" if devices == ["cpu"] else "load"
    about = f"{count}, {used}, {given.rounds} rounds x {given.loads} loads"
    return "\n".join(
        table.text(name, about, nbytes, CASES[name], [one for one in lines if one["case"] == name])
        for name in names
    )


class Batch:
    """New processes of some loaders, which load in turn. In the first round each loads once more,
    which measures memory, and checks its bytes."""

    def __init__(
        self, given: argparse.Namespace, state: State, number: int, samples: table.Samples
    ) -> None:
        self._given, self._state, self._number = given, state, number
        self._samples = samples
        self._started: list[tuple[Turn, processes.Ranks]] = []
        self._last: Turn | None = None
        self._since = 0.0
        self.lines: list[table.Line] = []

    def run(self, turns: list[Turn], paths: list[Path], devices: list[str], folder: Path) -> None:
        try:
            for turn in turns:
                with self._noted(turn):
                    self._started.append((turn, processes.Ranks(
                        *turn, paths, devices, folder, self._given.timeout
                    )))  # fmt: skip
            self._each(lambda _, one: one.answers())
            for load in range(self._given.loads):
                if time.monotonic() - STARTED < self._given.limit:
                    self._each(partial(self._load, load))
            if self._number == 0:
                self._each(partial(self._load, -1))
                self._each(lambda _, one: one.say("check"))
                self._each(lambda _, one: one.answers())
        finally:
            for _, one in self._started:
                one.close()

    def _each(self, do: Callable[[Turn, processes.Ranks], object]) -> None:
        for turn, one in list(self._started):
            with self._noted(turn):
                do(turn, one)
                continue
            one.close()
            self._started.remove((turn, one))

    @contextmanager
    def _noted(self, turn: Turn) -> Iterator[None]:
        try:
            yield
        except processes.Ended as ended:
            self._add(turn, -1, ended.answer)

    def _load(self, load: int, turn: Turn, ranks: processes.Ranks) -> None:
        ours = turn[1].kind != "peer"
        if ours and turn != self._last:
            # Engines of several processes share the cores for 0.7 s.
            time.sleep(max(0.0, self._since + 1 - time.monotonic()))
        found = ranks.load(self._state, "watch" if load < 0 else "load")
        if ours:
            self._last, self._since = turn, time.monotonic()
        self._add(turn, load, found)

    def _add(self, turn: Turn, load: int, found: dict[str, Any]) -> None:
        at = {"case": turn[0], "loader": turn[1].name, "state": self._state,
              "round": self._number, "load": load}  # fmt: skip
        self.lines.append(self._samples.add({**at, **found}))


def wanted(side: Side, texts: list[str] | None) -> bool:
    return texts is None or any(text in side.name for text in texts)


def order(sides: list[Turn], state: State, number: int) -> list[Turn]:
    """The turns of a round. Each round begins with another side, and every second one runs
    backwards, so that no side always comes after the same one."""
    taking = [turn for turn in sides if state in turn[1].states]
    step = -1 if number % 2 else 1
    return [taking[(number + step * place) % len(taking)] for place in range(len(taking))]


if __name__ == "__main__":
    if sys.argv[1:] == ["--turn"]:
        import turn

        turn.main()
    sys.exit(main())
