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
from contextlib import suppress
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


class Ranks:
    """The processes of a side: rank r loads to the device r, modulo their number."""

    def __init__(
        self, case: str, side: Side, paths: list[Path], devices: list[str],
        folder: Path, timeout_s: float,
    ) -> None:  # fmt: skip
        prepared = folder / side.prepare.__name__ if side.prepare else None
        self._timeout_s = timeout_s
        turn = {"case": case, "loader": side.name}
        own = tempfile.mkdtemp(dir=folder)
        jobs = [
            asdict(Job(list(map(str, paths)), devices[rank % len(devices)], rank, side.ranks,
                       own, str(prepared)))
            for rank in range(side.ranks)
        ]  # fmt: skip
        if prepared and not prepared.exists():
            prepared.mkdir()
            self._children = [Child({**turn, "job": jobs[0], "prepare": True}, side.variables)]
            try:
                self.answers()
            except Ended:
                shutil.rmtree(prepared)
                raise
            finally:
                self.close()
        self._files = [one for one in prepared.rglob("*") if one.is_file()] if prepared else paths
        self._children = [Child({**turn, "job": job}, side.variables) for job in jobs]

    def answers(self) -> list[dict[str, Any]]:
        """An answer of every process; ends all if they do not come in time."""

        def late() -> None:
            for child in self._children:
                child.end(f"did not end within {self._timeout_s:g} s")

        timer = threading.Timer(self._timeout_s, late)
        timer.start()
        try:
            return [child.answer() for child in self._children]
        finally:
            timer.cancel()
            timer.join()

    def say(self, line: str) -> None:
        for child in self._children:
            child.say(line)

    def load(self, state: State, order: str) -> dict[str, Any]:
        """Loads on all ranks concurrently. A `watch` must be followed by `check`."""
        self.say(order)
        self.answers()
        resident = brought(self._files, state)
        self.say("go")
        ranks = self.answers()
        seconds = max(rank["end"] for rank in ranks) - min(rank["begin"] for rank in ranks)
        return {"seconds": seconds, "resident": resident, "ranks": ranks}

    def close(self) -> None:
        for child in self._children:
            child.close()


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
