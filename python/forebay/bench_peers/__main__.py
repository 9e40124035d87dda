"""``python -m forebay.bench_peers FILE``: see ``docs/peers.md``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from .._errors import shown
from .._sizes import size_of
from . import cache, machine, model, rounds, summary
from .sides import ALL, Side
from .sides.side import STATES


def main() -> int:
    """Measures, prints a table, and writes what was measured."""
    given = _arguments()
    path = Path(given.file).absolute()
    try:
        sides = _chosen(given.sides)
        states = _states(given.states)
        if not path.exists():
            if given.make is None:
                raise ValueError(f"there is no `{shown(path)}`: `--make SIZE` writes one")
            _say(f"writing {given.make} to {path}")
            model.make(path, size_of(given.make), given.tensors, given.seed)
        file = model.opened(path)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    environment = rounds.run(
        {"do": "describe", "device": given.device, "path": str(path)}, {}, given.timeout
    )
    if "failed" in environment:
        print(f"error: {environment['failed']}", file=sys.stderr)
        return 2
    results = rounds.Results(
        given.out,
        command=machine.command(),
        environment=environment,
        file={"path": str(path), "bytes": file.nbytes, "tensors": len(file.tensors)},
        rounds=given.rounds,
        loads=given.loads,
    )
    with tempfile.TemporaryDirectory(prefix=".bench_peers-", dir=path.parent) as folder:
        try:
            _measure(given, file, results, sides, states, Path(folder))
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    return _told(results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m forebay.bench_peers",
        description="Loads one safetensors file by Forebay and by every other loader that is "
        "installed, turn by turn, and compares them.",
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="a safetensors file")
    add("--make", metavar="SIZE", help="write FILE first where it is not there, such as `8GiB`")
    add("--tensors", type=int, default=8, metavar="N", help="tensors of a file that is made (8)")
    add("--seed", type=int, default=1, metavar="N", help="of the bytes of a file that is made (1)")
    add("--device", default="auto", help="`cuda:0`, `cpu`, or `auto`: the first GPU (auto)")
    add("--sides", metavar="NAME,…", help="only these, such as `forebay,link,safetensors`")
    add("--states", default=",".join(STATES), help="`resident`, `cold` or both (both)")
    add("--rounds", type=int, default=3, metavar="N", help="processes of each side and state (3)")
    add("--loads", type=int, default=4, metavar="N", help="timed loads of each process (4)")
    add("--timeout", type=float, default=600, metavar="S", help="seconds of one process (600)")
    add("--out", type=Path, metavar="FOLDER", help="write `bench_peers.json` there")
    given = parser.parse_args()
    for name in ("rounds", "loads", "tensors"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} has to be 1 or more")
    return given


def _chosen(names: str | None) -> list[Side]:
    if names is None:
        return ALL
    wanted = names.split(",")
    known = {side.name for side in ALL}
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"no side `{unknown[0]}`: there are {', '.join(sorted(known))}")
    return [side for side in ALL if side.name in wanted]


def _states(names: str) -> list[str]:
    wanted = names.split(",")
    if unknown := [name for name in wanted if name not in STATES]:
        raise ValueError(f"no state `{unknown[0]}`: there are {', '.join(STATES)}")
    return [state for state in STATES if state in wanted]


def _measure(
    given: argparse.Namespace,
    file: model.Model,
    results: rounds.Results,
    sides: list[Side],
    states: list[str],
    folder: Path,
) -> None:
    device = results.known["environment"]["device"]
    rounds.run({"do": "touch", "nbytes": 2 * file.nbytes}, {}, given.timeout)
    answer = rounds.run({"do": "sums", "path": str(file.path)}, {}, given.timeout)
    if "failed" in answer:
        raise RuntimeError(f"cannot sum up `{shown(file.path)}`: {answer['failed']}")
    sides = _available(sides, device, results)
    states = _possible(states, file.path, sides, results)
    prepared = _prepared(given, file, sides, folder, results)
    for number in range(given.rounds):
        for side, state in rounds.order(sides, states, number):
            named = {"side": side.name, "setting": side.setting, "state": state}
            if side.name not in prepared or results.has_failed(named):
                continue
            _say(f"round {number + 1} of {given.rounds}: {side.name} ({side.setting}), {state}")
            job = {
                "do": "measure",
                **named,
                "device": device,
                "path": str(file.path),
                "prepared": prepared[side.name],
                "loads": given.loads,
                "sums": answer["sums"],
            }
            told = rounds.run(job, side.variables, given.timeout)
            results.add({"round": number, **named, "variables": side.variables, **told})


def _available(sides: list[Side], device: str, results: rounds.Results) -> list[Side]:
    found = []
    for side in sides:
        reason = side.available(device)
        if reason is None:
            found.append(side)
        else:
            results.skip(side, None, reason)
    return found


def _possible(
    states: list[str], path: Path, sides: list[Side], results: rounds.Results
) -> list[str]:
    """States that the file can be in."""
    if "cold" in states and cache.make(path, "cold") > 0.01:
        for side in sides:
            if "cold" in side.states:
                results.skip(side, "cold", "the file system keeps the file in memory")
        return [state for state in states if state != "cold"]
    return states


def _prepared(
    given: argparse.Namespace,
    file: model.Model,
    sides: list[Side],
    folder: Path,
    results: rounds.Results,
) -> dict[str, str]:
    """The file that each side loads; those whose file cannot be made are left out."""
    files: dict[str, str] = {}
    converted: dict[str, Any] = {}
    for side in sides:
        if not side.converts:
            files[side.name] = str(file.path)
            continue
        if side.name in converted:
            continue
        _say(f"converting for {side.name}")
        job = {
            "do": "prepare",
            "side": side.name,
            "setting": side.setting,
            "path": str(file.path),
            "folder": str(folder),
        }
        told = converted[side.name] = rounds.run(job, side.variables, given.timeout)
        if "failed" in told:
            results.skip(side, None, f"cannot convert the file: {told['failed']}")
        else:
            files[side.name] = told["path"]
    results.known["converted"] = converted
    return files


def _told(results: rounds.Results) -> int:
    """Prints what was found; 1 where something went wrong."""
    known = results.known
    made = summary.rows(known["turns"])
    known["summary"] = summary.plain(made)
    known["warnings"] = summary.warnings(made)
    results.write()
    about = known["environment"]
    gpu = about["gpu"]["name"] if about["gpu"] else "host memory"
    file = known["file"]
    print(f"{file['bytes'] / 1e9:.3f} GB in {file['tensors']} tensors to {gpu}", end=", ")
    print(f"{about['file_system'].get('file_system', 'unknown')}, kernel {about['kernel']}")
    print(f"medians of {known['rounds']} rounds, {known['loads']} loads each\n")
    print(summary.table(made))
    for skipped in known["skipped"]:
        state = f", {skipped['state']}" if skipped["state"] else ""
        _say(f"skipped: {skipped['side']} ({skipped['setting']}){state}: {skipped['reason']}")
    for text in summary.warnings(made):
        _say(f"warning: {text}")
    failed = rounds.failures(known["turns"])
    for text in failed:
        print(f"error: {text}", file=sys.stderr)
    return 1 if failed else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
