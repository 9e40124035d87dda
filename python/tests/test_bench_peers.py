"""The comparison with other loaders: made tiny, on the host, and looked at from outside."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forebay._sizes import size_of
from forebay.bench_peers import cache, checks, model, rounds, summary
from forebay.bench_peers.sides import ALL, Loaded
from forebay.bench_peers.sides.side import STATES

HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_SAFETENSORS = HAS_TORCH and importlib.util.find_spec("safetensors") is not None


@pytest.fixture
def file(tmp_path: Path) -> model.Model:
    model.make(tmp_path / "model.safetensors", 1 << 20, 3, seed=5)
    return model.opened(tmp_path / "model.safetensors")


def bench(*arguments: object, more_path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if more_path is not None:
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{more_path}:{known}" if known else str(more_path)
    command = [sys.executable, "-m", "forebay.bench_peers", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, env=environment
    )


def test_a_tiny_comparison_runs_from_end_to_end(tmp_path: Path) -> None:
    path = tmp_path / "made.safetensors"
    done = bench(
        path, "--make", "1MiB", "--tensors", 5, "--device", "cpu", "--rounds", 2, "--loads", 2,
        "--sides", "forebay,link,drive,safetensors,kvikio,instanttensor", "--out", tmp_path / "out",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    known = json.loads((tmp_path / "out" / "bench_peers.json").read_text())
    assert known["file"]["tensors"] == 5 and known["file"]["bytes"] == path.stat().st_size - (
        model.opened(path).begin
    )
    states = {turn["state"] for turn in known["turns"]}
    assert "resident" in states and not [turn for turn in known["turns"] if "failed" in turn]
    sides = {(turn["side"], turn["setting"]) for turn in known["turns"]}
    assert {("forebay", "default"), ("link", "one copy")} <= sides
    assert (("safetensors", "default") in sides) == HAS_SAFETENSORS
    for turn in known["turns"]:
        assert len(turn["loads"]) == 2 and turn["round"] in (0, 1)
        assert all(load["seconds"] > 0 and load["cpu_s"] >= 0 for load in turn["loads"])
    for turn in known["turns"]:
        if turn["side"] == "forebay":
            assert sum(share["bytes"] for share in turn["told"]["routes"]) == 1048570
    assert all(row["of_forebay"] == 1 for row in known["summary"] if row["side"] == "forebay"
               and row["setting"] == "default")  # fmt: skip
    assert known["environment"]["device"] == "cpu" and known["environment"]["kernel"]
    assert "| forebay | default |" in done.stdout and "### Resident" in done.stdout
    skipped = {(one["side"], one["reason"]) for one in known["skipped"]}
    reasons = {"`kvikio` is not installed", "`torch` is not installed", "loads to a GPU only"}
    assert {reason for side, reason in skipped if side == "kvikio"} <= reasons
    assert "skipped: kvikio (default): " in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["made.safetensors", "out"]


@pytest.mark.skipif(not HAS_TORCH, reason="no torch")
def test_a_library_that_loads_wrong_bytes_is_found_out(tmp_path: Path, file: model.Model) -> None:
    fake = tmp_path / "fake" / "safetensors"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("__version__ = '0'\nclass safe_open: pass\n")
    (fake / "torch.py").write_text(
        "import torch\n"
        "def load_file(path, device):\n"
        "    print('{\"loads\": []}', flush=True)  # what a library prints is no answer\n"
        "    raw = bytearray(open(path, 'rb').read())\n"
        f"    flat = torch.frombuffer(raw, dtype=torch.uint8)[{file.begin}:]\n"
        "    flat[-1] ^= 1\n"
        "    parts = flat.view(torch.bfloat16).chunk(3)\n"
        "    return {f'layer.{n:05}': part for n, part in enumerate(parts)}\n"
    )
    done = bench(
        file.path, "--device", "cpu", "--rounds", 1, "--loads", 1, "--states", "resident",
        "--sides", "safetensors", more_path=fake.parent,
    )  # fmt: skip
    assert done.returncode == 1
    assert "load 1: the bytes of `layer.00002` are not those of the file" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["MISSING"], "there is no .*missing.*--make"),
        (["MISSING", "--make", "much"], "`much` is no size"),
        (["FILE", "--sides", "forebay,fast"], "no side `fast`: there are drive, "),
        (["FILE", "--states", "warm"], "no state `warm`: there are resident, cold"),
        (["FILE", "--device", "cuda:77"], "error: "),
        (["FILE", "--rounds", "0"], "--rounds has to be 1 or more"),
        ([__file__], "is no safetensors file"),
    ],
)
def test_what_makes_no_sense_is_told(file: model.Model, arguments: list[str], says: str) -> None:
    named = {"FILE": file.path, "MISSING": file.path.with_name("missing")}
    done = bench(*[named.get(given, given) for given in arguments])
    assert done.returncode == 2 and done.stdout == ""
    assert re.search(says, done.stderr), done.stderr


def test_a_seed_makes_one_file(tmp_path: Path) -> None:
    for name, seed in [("a", 1), ("b", 1), ("c", 2)]:
        model.make(tmp_path / name, 100_000, 7, seed)
    a, b, c = ((tmp_path / name).read_bytes() for name in "abc")
    assert a == b != c and len(a) == len(c)
    made = model.opened(tmp_path / "a")
    assert len(made.tensors) == 7 and made.begin % 8 == 0 and made.end == len(a)
    assert made.nbytes == 7 * (100_000 // 7 // 2 * 2)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


def test_a_file_that_is_replaced_stays_as_private_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "model"
    for mode in (0o600, 0o640):
        path.write_bytes(b"old")
        path.chmod(mode)
        model.make(path, 100, 1, seed=1)
        assert path.stat().st_mode & 0o7777 == mode and path.stat().st_size > 100
    path.unlink()
    path.symlink_to(tmp_path / "nothing")
    model.make(path, 100, 1, seed=1)
    assert path.lstat().st_mode & 0o7777 == 0o644, "a link has no permissions of its own"
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.skipif(not HAS_SAFETENSORS, reason="no safetensors with torch")
def test_safetensors_itself_reads_what_was_made(file: model.Model) -> None:
    tensors = importlib.import_module("safetensors.torch").load_file(file.path)
    assert checks.wrong(file, Loaded(tensors, file.nbytes), checks.sums_of_file(file)) is None


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "would not fit"),
        (b"\xff" * 8, "would not fit"),
        ((50).to_bytes(8, "little") + b"{}", "would not fit"),
        ((2).to_bytes(8, "little") + b"{!", "no safetensors file"),
        ((2).to_bytes(8, "little") + b"{}more", "header tells of 10"),
        (
            (58).to_bytes(8, "little")
            + b'{"a": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]}}'[:58].ljust(58),
            "no safetensors file|does not begin",
        ),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, raw: bytes, says: str) -> None:
    (tmp_path / "file").write_bytes(raw)
    with pytest.raises(ValueError, match=says):
        model.opened(tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8GiB", 8 << 30), ("64M", 64 << 20), ("1.5 GB", 1_500_000_000), ("100", 100), ("3kB", 3000)],
)
def test_sizes_are_written_as_people_write_them(text: str, nbytes: int) -> None:
    assert size_of(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "GiB", "1 QB", "1e3", "0.1"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        size_of(text)


def loaded(file: model.Model, raw: bytearray) -> Loaded:
    """As if `raw` were what somebody loaded."""
    tensors: dict[str, Any] = {}
    for tensor in file.tensors:
        part = raw[tensor.begin : tensor.end]
        if HAS_TORCH:
            torch = importlib.import_module("torch")
            tensors[tensor.name] = torch.frombuffer(part, dtype=torch.bfloat16)
        else:
            tensors[tensor.name] = memoryview(part)
    return Loaded(tensors, file.nbytes)


def test_the_check_finds_any_difference(file: model.Model) -> None:
    sums, raw = checks.sums_of_file(file), bytearray(file.path.read_bytes())
    assert checks.wrong(file, loaded(file, raw), sums) is None
    for place in [file.begin, file.begin + 12345, file.end - 1]:
        other = bytearray(raw)
        other[place] ^= 0x80
        assert "are not those of the file" in str(checks.wrong(file, loaded(file, other), sums))
    swapped = bytearray(raw)
    at, behind = file.begin + 64, file.begin + 128
    swapped[at : at + 8], swapped[behind : behind + 8] = raw[behind : behind + 8], raw[at : at + 8]
    assert "are not those of the file" in str(checks.wrong(file, loaded(file, swapped), sums))
    if HAS_TORCH:
        bent = loaded(file, raw)
        bent.tensors["layer.00001"] = bent.tensors["layer.00001"].reshape(2, -1)
        assert "`layer.00001` has the shape (2, 87381), not" in str(checks.wrong(file, bent, sums))
    fewer = loaded(file, raw)
    name, last = fewer.tensors.popitem()
    assert checks.wrong(file, fewer, sums) == f"1 tensors are missing, such as `{name}`"
    fewer.tensors[name] = last[:-1]
    assert f"`{name}` has " in str(checks.wrong(file, fewer, sums))
    fewer.tensors.update({name: last, "other": last})
    assert checks.wrong(file, fewer, sums) == "1 tensors are not in the file, such as `other`"


def test_a_file_is_brought_into_the_page_cache_and_out_of_it(file: model.Model) -> None:
    def stays() -> bool:
        """The kernel may take pages back at any time, but not each time."""
        return any(cache.make(file.path, "resident") == 1 for _ in range(20))

    assert stays()
    if cache.make(file.path, "cold") > 0.5:
        pytest.skip("the file system keeps its files in memory")
    assert cache.share(file.path) == 0
    assert stays()


def test_every_round_has_every_turn_once_and_begins_with_another_side() -> None:
    states = list(STATES)
    expected = {(side.name, side.setting, state) for side in ALL for state in side.states}
    firsts = []
    for number in range(8):
        turns = rounds.order(ALL, states, number)
        assert len(turns) == len(expected)
        assert {(side.name, side.setting, state) for side, state in turns} == expected
        assert [state for _, state in turns] == sorted((s for _, s in turns), reverse=True)
        firsts.append(turns[0][0])
    assert len(set(firsts)) == 8
    one, two = rounds.order(ALL, ["cold"], 0), rounds.order(ALL, ["cold"], 1)
    followers = {(a[0], b[0]) for a, b in zip(one, one[1:], strict=False)}
    assert not followers & {(a[0], b[0]) for a, b in zip(two, two[1:], strict=False)}
    assert rounds.order([], states, 1) == []


def test_sides_can_be_told_apart() -> None:
    names = [(side.name, side.setting) for side in ALL]
    assert len(set(names)) == len(names) and names[0] == ("forebay", "default")
    assert all(set(side.states) <= set(STATES) and side.states for side in ALL)


def test_a_process_that_hangs_or_dies_is_told_of() -> None:
    job = {"do": "touch", "nbytes": 1}
    assert rounds.run(job, {}, 120) == {}
    assert "did not end within 0.001 s" in rounds.run(job, {}, 0.001)["failed"]
    died = rounds.run(job, {"PYTHONHOME": "/nonexistent"}, 120)
    assert "the process ended with 1: " in died["failed"] and died["talk"]
    assert "KeyError" in rounds.run({"do": "fly"}, {}, 120)["failed"]


def turn(side: str, state: str, *seconds: float, **changes: Any) -> dict[str, Any]:
    loads = [
        {"seconds": one, "cpu_s": one / 2, "bytes": 2_000_000_000, "resident": 1.0}
        for one in seconds
    ]
    made = {
        "side": side, "setting": "default", "state": state, "loads": loads,
        "host_peak": 3_000_000, "gpu_extra": 0,
    }  # fmt: skip
    return {**made, **changes}


def test_turns_come_to_medians_and_ratios() -> None:
    turns = [
        turn("forebay", "resident", 4.0, 1.0, 2.0),
        turn("forebay", "resident", 2.0, 1.0, 1.0),
        turn("other", "resident", 8.0, 2.0, 2.0),
        turn("other", "cold", 8.0),
        {"side": "broken", "setting": "default", "state": "cold", "failed": "it broke"},
    ]
    made = summary.rows(turns)
    assert [(row.side, row.state) for row in made] == [
        ("forebay", "resident"), ("other", "resident"), ("other", "cold"),
    ]  # fmt: skip
    ours, other, cold = made
    assert (ours.first, ours.steady, ours.rounds) == (0.75, 2.0, 2)
    assert (ours.steady_least, ours.steady_most, ours.cpu_s_per_gb) == (1.0, 2.0, 0.25)
    assert other.speed == 1.0 and cold.steady is None and cold.speed == 0.25
    assert [row["of_forebay"] for row in summary.plain(made)] == [1.0, 0.5, None]
    assert rounds.failures(turns) == ["broken (default), cold: it broke"]
    assert summary.table(made).splitlines() == [
        "### Resident",
        "",
        "| Side | Setting | First GB/s | Then GB/s | Of Forebay | CPU s/GB | Host MB | GPU MB |",
        "|---|---|---|---|---|---|---|---|",
        "| forebay | default | 0.75 | 2.00 | 1.00 | 0.250 | 3 | 0 |",
        "| other | default | 0.25 | 1.00 | 0.50 | 0.500 | 3 | 0 |",
        "",
        "### Cold",
        "",
        "| Side | Setting | First GB/s | Then GB/s | Of Forebay | CPU s/GB | Host MB | GPU MB |",
        "|---|---|---|---|---|---|---|---|",
        "| other | default | 0.25 |  |  | 2.000 | 3 | 0 |",
    ]
    assert summary.warnings(made) == [
        "other (default), cold: 100% of the file was in the page cache",
        "other (default), cold: first loads only, which are compared: give `--loads 2` or more",
    ]


def test_results_are_there_after_every_turn(tmp_path: Path) -> None:
    results = rounds.Results(tmp_path / "new", command=["python"])
    results.skip(ALL[0], None, "no reason")
    for count in [1, 2]:
        results.add(turn("forebay", "cold", 1.0))
        known = json.loads((tmp_path / "new" / "bench_peers.json").read_text())
        assert len(known["turns"]) == count and known["skipped"][0]["reason"] == "no reason"
    assert os.listdir(tmp_path / "new") == ["bench_peers.json"]


def test_who_has_failed_is_not_asked_again() -> None:
    results = rounds.Results(None)
    named = {"side": "a", "setting": "default", "state": "cold"}
    results.add({**named, "loads": [1], "told": {}})
    assert not results.has_failed(named)
    results.add({**named, "failed": "it broke", "loads": [{}]})
    assert results.has_failed(named)
    assert not results.has_failed({**named, "state": "resident"})
