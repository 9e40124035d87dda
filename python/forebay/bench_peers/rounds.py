"""Runs turns, each in a fresh process, round by round, and keeps what they tell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .._command import interpreter
from .sides import Side


def order(sides: list[Side], states: list[str], number: int) -> list[tuple[Side, str]]:
    """The turns of round `number`: one state after another, in each of them all sides.

    Every round begins with another side, and every second one goes backwards from there, so that
    nobody always comes behind the same one.
    """
    turns = []
    for state in states:
        taking = [side for side in sides if state in side.states]
        step = -1 if number % 2 else 1
        for place in range(len(taking)):
            turns.append((taking[(number + step * place) % len(taking)], state))
    return turns


def run(job: dict[str, Any], variables: dict[str, str], timeout_s: float) -> dict[str, Any]:
    """What a process of its own answers to a job; `failed` where it gives no answer."""
    command = [*interpreter(), "-m", "forebay.bench_peers.turn"]
    # A session of its own, so that whatever it started ends with it.
    process = subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        out, talk = process.communicate(json.dumps(job), timeout=timeout_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return {"failed": f"did not end within {timeout_s:g} s"}
    except BaseException:
        _end(process)
        raise
    try:
        answer: dict[str, Any] = json.loads(out)
    except ValueError:
        last = (talk.strip().splitlines() or ["it said nothing"])[-1]
        answer = {"failed": f"the process ended with {process.returncode}: {last}"}
    if "failed" in answer:
        answer["talk"] = talk[-4000:]
    return answer


def _end(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


class Results:
    """All that is known so far, rewritten after every turn, so that no crash loses it."""

    def __init__(self, folder: Path | None, **known: Any) -> None:
        self.known: dict[str, Any] = {**known, "skipped": [], "turns": []}
        self._path = folder and folder / "bench_peers.json"

    def skip(self, side: Side, state: str | None, reason: str) -> None:
        """Notes what is not measured, and why."""
        where = {"side": side.name, "setting": side.setting, "state": state}
        self.known["skipped"].append({**where, "reason": reason})

    def add(self, turn: dict[str, Any]) -> None:
        """Notes a turn."""
        self.known["turns"].append(turn)
        self.write()

    def has_failed(self, named: dict[str, str]) -> bool:
        """Whether a side has failed in this state: it is not asked again."""
        failed = (turn for turn in self.known["turns"] if "failed" in turn)
        return any(named.items() <= turn.items() for turn in failed)

    def write(self) -> None:
        """Replaces the file by one that has everything."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        beside = self._path.with_suffix(".json.new")
        beside.write_text(json.dumps(self.known, indent=1) + "\n")
        os.replace(beside, self._path)


def failures(turns: Iterable[dict[str, Any]]) -> list[str]:
    """What went wrong, in words, each once."""
    said = {
        f"{turn['side']} ({turn['setting']}), {turn['state']}: {turn['failed']}": None
        for turn in turns
        if "failed" in turn
    }
    return list(said)
