"""The comparison of loaders, `benches/loaders`, on tiny models and on the host."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="no torch")
pytest.importorskip("safetensors.torch", reason="no safetensors")

BENCH = Path(__file__).parents[2] / "benches" / "loaders"


def bench(*words: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(BENCH), *map(str, words), "--device", "cpu"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment
    )


def samples(folder: Path) -> list[dict[str, str]]:
    with open(folder / "samples.csv") as file:
        return list(csv.DictReader(file))


def test_loaders_are_compared_on_one_model(tmp_path: Path) -> None:
    done = bench(
        tmp_path / "models", "--make", 0.001, "--rounds", 1, "--loads", 2, "--state", "resident",
        "--loader", "load_file", "--loader", "kvikio", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert re.search(r"^forebay load_file +\d+\.\d\d +\d+\.\d\d +\d+\.\d  1\.00 ", done.stdout, re.M)
    assert re.search(r"^safetensors load_file +\d+\.\d\d ", done.stdout, re.M)
    assert re.search(r"first \S+ x, then \S+ x the best peer, safetensors load_file", done.stdout)
    assert "not measured: kvikio, default: " in done.stdout
    first = json.loads((tmp_path / "out/environment.json").read_text())
    assert first["devices"] == ["cpu"] and first["packages"]["safetensors"]
    assert first["environment"]["kernel"]
    assert (tmp_path / "out/tables.txt").read_text() == done.stdout
    ours = [one for one in samples(tmp_path / "out") if one["loader"] == "forebay load_file"]
    assert [one["load"] for one in ours] == ["0", "1", "-1"]
    assert all(int(one["bytes"]) > 1_000_000 and float(one["seconds"]) > 0 for one in ours)
    assert os.listdir(tmp_path / "models") == ["0.001GiB-8-tensors-1-files"]


@pytest.mark.parametrize(
    "case", ["experts", "iterate", "one-by-one", "ranks-2", "slices-4", "dcp-load", "dcp-save"]
)
def test_every_case_loads_the_bytes_of_its_files(tmp_path: Path, case: str) -> None:
    """Loaders that are installed; all tensors are compared."""
    words = ["--rounds", 1, "--loads", 1, "--together", 4, "--state", "resident"]
    done = bench(tmp_path, "--make", 0.0001, "--case", case, *words, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    checked = [one["loader"] for one in samples(tmp_path / "out") if one["load"] == "-1"]
    assert any("forebay" in name or "torch" in name for name in checked), done.stdout
    missing = [line for line in done.stdout.splitlines() if line.startswith("not measured")]
    known = re.compile(r"No module named '\w+|loads to GPUs only|has no `")
    assert all(map(known.search, missing)), missing


def test_a_loader_that_brings_wrong_bytes_is_found_out(tmp_path: Path) -> None:
    (tmp_path / "runai_model_streamer.py").write_text(
        """
from safetensors.torch import load_file
print('{"ready": true}')  # what a library prints is no answer
class SafetensorsStreamer:
    __enter__ = lambda self: self
    __exit__ = lambda *_: None
    def stream_files(self, paths):
        self.tensors = load_file(paths[0])
        self.tensors["layer.00002"] = self.tensors["layer.00002"] * 2
    def get_tensors(self):
        yield from self.tensors.items()
"""
    )
    done = bench(
        tmp_path, "--make", 0.0001, "--loader", "runai, 16", "--state", "resident",
        "--out", tmp_path / "out", path=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1
    printed = "FAILED: runai, 16 readers: ValueError: the bytes of `layer.00002` are not those"
    assert printed in done.stdout
    assert not re.search(r"^runai", done.stdout, re.M)
    assert {one["round"] for one in samples(tmp_path / "out")} == {"0"}, "it is not run again"


def test_a_loader_that_hangs_or_dies_is_reported(tmp_path: Path) -> None:
    def reason(code: str, *words: object) -> str:
        (tmp_path / "kvikio.py").write_text(code)
        done = bench(
            tmp_path, "--make", 0.0001, "--loader", "kvikio, default", "--state", "resident",
            "--out", tmp_path / "out", *words, path=tmp_path,
        )  # fmt: skip
        assert done.returncode == 1
        return done.stdout.splitlines()[-1].removeprefix("FAILED: kvikio, default: ")

    assert reason("import os; os._exit(3)") == "the process ended with 3"
    assert reason("while True: pass", "--timeout", 5) == "did not end within 5 s"
    assert reason("1 / 0") == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing"], "error: no safetensors file at `.*nothing`: `--make 8` writes a model there"),
        (["nothing", "--rounds", "0"], "must be 1 or more"),
        (["nothing", "--case", "fly"], "invalid choice: 'fly'"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(
    tmp_path: Path, words: list[str], says: str
) -> None:
    done = bench(*words, "--out", tmp_path / "out")
    assert done.returncode == 2 and done.stdout == "" and re.search(says, done.stderr)
    assert not (tmp_path / "out").exists()


def test_turns_come_to_medians_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    table, cases = (importlib.import_module(name) for name in ("table", "cases"))

    def turn(loader: str, number: int, *seconds: float) -> list[dict[str, Any]]:
        rank = {"cpu_s": 2.0, "bytes": 2e9, "host": 3 << 20, "gpu": 5 << 20, "rchar": 0,
                "read_bytes": 1e9}  # fmt: skip
        at = {"loader": loader, "state": "resident", "round": number, "resident": 1.0}
        return [
            {**at, "load": load if number >= 0 else -1, "seconds": one, "ranks": [rank]}
            for load, one in enumerate(seconds)
        ]

    lines = [
        *turn("forebay load_file", -1, 100.0),
        *turn("forebay load_file", 0, 4.0, 1.0, 2.0),
        *turn("forebay load_file", 1, 2.0, 1.0, 1.0),
        *turn("safetensors load_file", 0, 8.0, 2.0, 2.0),
        {"loader": "flashpack", "state": "resident", "load": -1, "missing": "it is not there"},
        *turn("kvikio, default", 0, 1.0),
        {"loader": "kvikio, default", "state": "resident", "load": -1, "failed": "other bytes"},
    ]
    case = cases.CASES["load"]
    assert table.text("load", "2 GB", 2e9, case, lines).splitlines() == [
        "",
        "load, resident: 2 GB",
        "loader                        first   then  GPUs ratio  s/GB   host    GPU drive",
        "forebay load_file              0.75   2.00   2.0  1.00  1.00      3      5  0.50",
        "safetensors load_file          0.25   1.00   1.0  0.50  1.00      3      5  0.50",
        "forebay load_file:",
        "  first 3.00 x, then 2.00 x the best peer, safetensors load_file",
        "not measured: flashpack: it is not there",
        "FAILED: kvikio, default: other bytes",
    ]
    for line in lines:
        line["resident"] = 0.5
    assert "doubt: forebay load_file: only 50% of the files was in the page cache" in table.text(
        "load", "2 GB", 2e9, case, lines
    )


def test_every_round_begins_with_another_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    cases = importlib.import_module("cases")
    spec = importlib.util.spec_from_file_location("loaders_main", BENCH / "__main__.py")
    assert spec and spec.loader
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    sides = [("load", side) for side in cases.CASES["load"].sides]
    for state in cases.State:
        rounds = [
            [side.name for _, side in main.order(sides, state, number)] for number in range(6)
        ]
        assert len({names[0] for names in rounds}) == 6
        for names in rounds:
            assert sorted(names) == sorted(one.name for _, one in sides if state in one.states)
        followers = [set(zip(names, names[1:], strict=False)) for names in rounds[:2]]
        assert len(followers[0] & followers[1]) <= 2, "where few take turns"
