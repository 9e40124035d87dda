"""Ranks of ``forebay bench`` that torchrun starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from forebay._command import program

pytest.importorskip("torch", reason="no torch")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_torchrun_starts_ranks(tmp_path: Path, ranks: int) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--standalone"]
    launcher += [f"--nproc-per-node={ranks}", "--"]
    bench = ["bench", ".", "--gpu=none", "--size=8M", "--block-size=64K", "--time=300ms"]
    command = [*launcher, *program(), *bench, "--repeats=1", "-o", "results"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "results").read_text().splitlines()]
    [run] = [record for record in records if record["record"] == "run"]
    assert len(run["ranks"]) == ranks
    # One sample is the total of all ranks, and rank 0 prints the only table.
    [sample] = [record["measured"] for record in records if record["record"] == "sample"]
    [line] = [one for one in done.stdout.splitlines() if one.startswith("forebay  ")]
    assert float(line.split()[1]) == pytest.approx(sample["bytes_per_second"] / 1e9, rel=0.02)
