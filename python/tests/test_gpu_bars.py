"""The bars for GPUs, `benches/gpus`, on little data and without a GPU."""

from __future__ import annotations

import csv
import importlib
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="no torch")

BENCH = Path(__file__).parents[2] / "benches" / "gpus"


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("bars")


def test_every_job_runs_and_is_archived(tmp_path: Path, bars: Any) -> None:
    jobs = {bar.job for bar in bars.BARS if not bar.job.startswith("layers")}
    done = subprocess.run(
        [sys.executable, BENCH, "--tiny", "--rounds", "1", "--seconds", "0.02",
         "--scratch", tmp_path, "--archive", tmp_path / "runs"],
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    [run] = (tmp_path / "runs").iterdir()
    files = {"environment.json", "samples.csv", "table.txt"}
    assert {path.name for path in run.iterdir()} == files
    rows = list(csv.DictReader((run / "samples.csv").open()))
    assert {row["job"] for row in rows} >= jobs
    missing = {bar.own for bar in bars.BARS if bar.job in jobs} - {row["series"] for row in rows}
    assert missing <= {"read_into of two", "load_file of two"}, "these need two GPUs"


def test_the_best_by_hand_counts_and_medians_are_compared(bars: Any) -> None:
    bar = bars.Bar("job", "own", 0.97, ("A", "B"))
    samples = {"own": [9.0, 1.0, 9.8], "A": [5.0], "B": [10.0, 100.0, 1.0]}
    assert bar.judged(samples).best == "B"
    assert bar.judged(samples).verdict == "missed"
    assert bar.judged({**samples, "own": [9.7]}).verdict == "met"
    assert bar.judged({"own": [9.7]}).verdict == "skipped"
    assert bar.judged({"A": [1.0]}).verdict == "skipped"
    most = bars.Bar("job", "own", 0.3, at_most=True)
    assert most.judged(samples).verdict == "missed"
    assert most.judged({"own": [0.3]}).verdict == "met"
    assert math.isnan(most.judged({}).value)
