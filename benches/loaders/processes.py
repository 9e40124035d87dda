"""Runs turns: fresh processes that load a model, whose pages are cached or evicted before."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import forebay
from cases import Side, State
from loaders import Job


class Ended(Exception):
    """A process has ended early: its last answer, with `missing` or `failed`."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(answer)
        self.answer = answer


class Child:
    """A process in its own session, so that its children end with it."""

    def __init__(self, given: dict[str, Any], variables: dict[str, str] | None) -> None:
        self._talk = tempfile.TemporaryFile()
        self._late = ""
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).parent, "--turn"],
            env={**os.environ, **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._talk,
            text=True,
            start_new_session=True,
        )
        self.say(json.dumps(given))

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            print(line, file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        code = None if line else self._process.wait()
        found: dict[str, Any] = json.loads(line or "{}")
        if code is not None:
            found["failed"] = self._late or f"the process ended with {code}"
        if "failed" in found:
            self._talk.seek(0)
            found["talk"] = self._talk.read()[-4000:].decode(errors="replace")
        if "failed" in found or "missing" in found:
            raise Ended(found)
        return found

    def end(self, late: str = "") -> None:
        self._late = late
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        self.end()
        self._process.communicate()
        self._talk.close()


@contextmanager
def children(
    given: list[dict[str, Any]], side: Side, timeout_s: float
) -> Iterator[list[Child]]:
    """Processes of one side, which are killed after `timeout_s` seconds."""
    started = [Child(one, side.variables) for one in given]

    def late() -> None:
        for child in started:
            child.end(f"did not end within {timeout_s:g} s")

    timer = threading.Timer(timeout_s, late)
    timer.start()
    try:
        yield started
    finally:
        timer.cancel()
        timer.join()
        for child in started:
            child.close()


def run(
    given: dict[str, Any],
    side: Side,
    state: State,
    paths: list[Path],
    devices: list[str],
    folder: Path,
    timeout_s: float,
) -> dict[str, Any]:
    """The `loads` of one turn, or the reason if there are none: `missing` or `failed`.

    Rank r loads to the device r, modulo their number.
    """
    prepared = folder / side.prepare.__name__ if side.prepare else None
    files = paths
    with tempfile.TemporaryDirectory(dir=folder) as own:
        ranks = [
            {**given, "job": asdict(Job(list(map(str, paths)), devices[rank % len(devices)], rank,
                                        side.ranks, own, str(prepared)))}
            for rank in range(side.ranks)
        ]  # fmt: skip
        try:
            if prepared:
                _prepare(prepared, ranks[0], side, timeout_s)
                files = [path for path in prepared.rglob("*") if path.is_file()]
            with children(ranks, side, timeout_s) as started:
                return {"loads": [_load(started, state, files) for _ in range(given["loads"])]}
        except Ended as ended:
            return ended.answer


def _prepare(prepared: Path, job: dict[str, Any], side: Side, timeout_s: float) -> None:
    if prepared.exists():
        return
    prepared.mkdir()
    try:
        with children([{**job, "prepare": True}], side, timeout_s) as [child]:
            child.answer()
    except BaseException:
        shutil.rmtree(prepared)
        raise


def _load(started: list[Child], state: State, files: list[Path]) -> dict[str, Any]:
    """One load of all ranks at once."""
    for child in started:
        child.answer()
    resident = brought(files, state)
    for child in started:
        child.say("go")
    ranks = [child.answer() for child in started]
    seconds = max(rank["end"] for rank in ranks) - min(rank["begin"] for rank in ranks)
    return {"seconds": seconds, "resident": resident, "ranks": ranks}


def brought(files: list[Path], state: State) -> float:
    """Makes files resident or cold; returns the share of their pages in the page cache."""
    resident = length = 0
    for path in files:
        with forebay.open(path) as file:
            if state is State.COLD:
                file.evict()
            elif file.residency()["resident"] != file.size:
                with open(path, "rb") as read, open(os.devnull, "wb") as null:
                    shutil.copyfileobj(read, null, 16 << 20)
            known = file.residency()
        resident, length = resident + (known["resident"] or 0), length + known["length"]
    return resident / length if length else 1.0
