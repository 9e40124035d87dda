"""The comparison of methods that load layers, `benches/layers`: its pure parts, its file and reads."""

from __future__ import annotations

import errno
import importlib
import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forebay
import pytest
from faulty import mounted
from tensors import device_or_skip, torch_or_skip

BENCH = Path(__file__).parents[2] / "benches" / "layers"
sys.path.append(str(BENCH))

import raw  # noqa: E402
import report  # noqa: E402
import theory  # noqa: E402
from passes import Point, Sample, in_turn, summed_up  # noqa: E402
from theory import Shape  # noqa: E402

LAYERS, NBYTES = 3, 1 << 16


def bench(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, BENCH, *map(str, words)],
        capture_output=True, text=True, timeout=600, check=False, cwd=folder,
    )  # fmt: skip


def samples_of(walls: list[float], **more: Any) -> list[Sample]:
    """A turn of a pass each, behind one that only warms up."""
    warm = Sample(-1, 0, 100.0, 100.0)
    return [warm, *(Sample(number, 0, wall, 0.5, **more) for number, wall in enumerate(walls))]


def seeds(count: int) -> Iterator[random.Random]:
    """Many cases. The seed of the last that was printed makes it again: ``FOREBAY_SEED``."""
    first = os.environ.get("FOREBAY_SEED")
    for seed in [int(first)] if first else range(count):
        print(f"FOREBAY_SEED={seed}")
        yield random.Random(seed)


def reads(order: str, layers: int, buffers: int, passes: int) -> list[int]:
    """How many layers each of several passes brings."""
    taken = theory.turns(order, layers)
    planned = theory.plan(taken * passes, buffers)
    size = len(taken)
    ends = range(0, len(planned), size)
    return [sum(turn.read for turn in planned[at : at + size]) for at in ends]


def test_training_does_not_read_layers_at_the_turn_again() -> None:
    assert reads("train", layers=8, buffers=3, passes=4) == [13, 10, 10, 10]
    assert reads("train", layers=8, buffers=2, passes=1) == [14]
    assert reads("train", layers=8, buffers=8, passes=3) == [8, 0, 0]
    assert reads("forward", layers=8, buffers=3, passes=1) == [8]


def test_a_pass_is_never_beyond_what_can_be() -> None:
    for random_ in seeds(300):
        order, layers = random_.choice(theory.ORDERS), random_.randint(1, 12)
        buffers, transfer = random_.randint(1, 6), random_.uniform(0, 3)
        compute = [random_.uniform(0, 3) for _ in theory.turns(order, layers)]
        found = theory.line(order, compute, transfer, layers, buffers)
        assert found.compute == pytest.approx(sum(compute))
        assert found.transfer == pytest.approx(found.reads * transfer)
        assert found.time >= max(found.compute, found.transfer) - 1e-9
        assert found.time <= found.compute + found.transfer + 1e-9
        assert found.time >= transfer + found.compute - 1e-9
        assert found.stall >= -1e-9
        more = theory.line(order, compute, transfer, layers, buffers + 1)
        assert more.reads <= found.reads
        assert more.time <= found.time + 1e-9
        if buffers == 1 and layers > 1:
            assert found.time == pytest.approx(found.compute + found.transfer)


def test_a_uniform_pass_is_the_greater_of_both_and_the_edge() -> None:
    for random_ in seeds(300):
        order, layers = random_.choice(("forward", "backward")), random_.randint(1, 40)
        buffers = random_.randint(2, 6)
        compute, transfer = random_.uniform(0, 3), random_.uniform(0, 3)
        found = theory.line(order, [compute] * layers, transfer, layers, buffers)
        wanted = layers * max(compute, transfer) + min(compute, transfer)
        assert found.time == pytest.approx(wanted)


def test_no_other_choice_reads_less() -> None:
    for random_ in seeds(300):
        kinds, buffers = random_.randint(1, 6), random_.randint(1, 4)
        layers = [random_.randrange(kinds) for _ in range(random_.randint(0, 12))]
        planned = theory.plan(layers, buffers)
        assert sum(turn.read for turn in planned) == fewest(tuple(layers), buffers)
        held: dict[int, int] = {}
        over: dict[int, int] = {}
        for number, (layer, turn) in enumerate(zip(layers, planned, strict=True)):
            assert turn.read == (held.get(turn.buffer) != layer) and 0 <= turn.buffer < buffers
            if turn.read:
                assert turn.after == over.get(turn.buffer)
                assert layer not in held.values()
            held[turn.buffer], over[turn.buffer] = layer, number


def fewest(layers: tuple[int, ...], buffers: int) -> int:
    """The fewest reads of all choices that spare the layer whose turn has just been."""
    states = {frozenset[int](): 0}
    for number, layer in enumerate(layers):
        spared = layers[number - 1] if number and buffers > 1 else None
        after: dict[frozenset[int], int] = {}
        for held, count in states.items():
            if layer in held:
                ways = [(held, count)]
            elif len(held) < buffers:
                ways = [(held | {layer}, count + 1)]
            else:
                gone = [other for other in held if other != spared]
                ways = [(held - {other} | {layer}, count + 1) for other in gone]
            for state, cost in ways:
                after[state] = min(cost, after.get(state, cost))
        states = after
    return min(states.values())


def test_a_backward_turn_computes_three_times_a_forward_one() -> None:
    shape = Shape()
    assert (shape.queries, shape.mixed, shape.experts) == (12288, 14336, 9)
    for tokens in (1, 8192):
        forward = shape.operations(tokens, backward=False)
        assert shape.operations(tokens, backward=True) == 3 * forward
    weights = 5120 * (14336 + 12288) + 9 * 3 * 5120 * 1536
    assert shape.operations(1, backward=False) == 2 * weights + 4 * 12288


def point_of(tokens: int, ways: dict[str, list[float]], order: str = "forward") -> dict[str, Any]:
    """Three layers of 1 GB: compute 10 ms for each 1,000 tokens, transfer 20 ms."""
    layer = tokens / 1000 * 0.01
    back = 9 * layer if order == "train" else 0.0
    compute = {"forward_s": 3 * layer, "backward_s": back}
    turns = 6 if order == "train" else 3
    samples = {
        "compute": samples_of([3 * layer + back] * 3, **compute),
        "transfer": samples_of([turns * 0.02] * 3),
        **{name: samples_of(walls, stall_s=0.004, **compute) for name, walls in ways.items()},
    }
    point = Point(order, 3, 10**9, tokens)
    return summed_up(point, samples, dict.fromkeys(ways, 3))


def result_of(points: list[dict[str, Any]]) -> dict[str, Any]:
    about = {"layers": 3, "layer_bytes": 10**9, "order": "forward", "from": "<half>"}
    return {"points": points, **about}


def three_points() -> dict[str, Any]:
    """One way is free where compute binds, the other is twice as slow."""
    points = []
    for tokens in (1000, 4000, 8000):
        line = 3 * max(tokens / 1e5, 0.02) + min(tokens / 1e5, 0.02)
        points.append(
            point_of(tokens, {"ours": [line, 1.01 * line, 1.02 * line], "slow": [2 * line] * 3})
        )
    return result_of(points)


@pytest.mark.parametrize(("part", "ours"), [(1.0, 0.2), (0.5, 0.1), (0.1, 0.02), (0.0, 0.02)])
def test_a_drives_bytes_are_held_against_plain_reads(part: float, ours: float) -> None:
    ways = {name: samples_of([1.0] * 3, forward_s=0.12) for name in ("forebay", "two-buffers", "mmap")}
    samples = {
        "compute": samples_of([0.12] * 3, forward_s=0.12),
        "transfer": samples_of([3 * 0.02] * 3),
        "raw": samples_of([max(1, round(3 * part)) * 0.2] * 3),
        **ways,
    }
    point = summed_up(Point("forward", 3, 10**9, 1000, part), samples, dict.fromkeys(ways, 3))
    assert set(point["ways"]) == set(ways)
    assert point["transfer_layer_s"] == pytest.approx(ours)
    assert point["link_layer_s"] == pytest.approx(0.02)
    assert point["drive_layer_s"] == pytest.approx(0.2)
    for name, each in (("forebay", ours), ("two-buffers", 0.02), ("mmap", 0.2)):
        expected = max(0.12, 3 * each) + min(0.04, each)
        found = point["ways"][name]
        assert found["line_s"] == pytest.approx(expected), name
        assert found["transfer_layer_s"] == pytest.approx(each)
        # Each may take its own first transfer beyond compute, and no other's.
        for more, free in ((1.01, True), (1.02, False)):
            took = {**found, "pass_s": more * (0.12 + each)}
            assert report.is_free(point, took) == free, name


def test_a_pass_from_a_drive_is_held_against_the_reads_of_its_own_round() -> None:
    # The drive becomes slower and slower, and the passes with it.
    rates = [1.0, 2.0, 4.0]
    samples = {
        "compute": samples_of([0.003] * 3, forward_s=0.003),
        "transfer": samples_of([0.003] * 3),
        "raw": samples_of([3 * rate for rate in rates]),
        "forebay": samples_of([1.02 * (3 * rate + 0.001) for rate in rates]),
    }
    point = summed_up(Point("forward", 3, 10**9, 1, 1.0), samples, {"forebay": 3})
    assert report.over_line(point["ways"]["forebay"]) == pytest.approx(1.02)
    # The reads of other rounds are no measure of it.
    samples["raw"] = samples_of([3 * rate for rate in (4.0, 1.0, 2.0)])
    ours = summed_up(Point("forward", 3, 10**9, 1, 1.0), samples, {"forebay": 3})["ways"]["forebay"]
    assert ours["pass_s"] / ours["line_s"] == pytest.approx(1.02)
    assert ours["over_line"] == pytest.approx(2.04, rel=1e-3)


def test_half_of_an_odd_number_is_read_from_the_drive() -> None:
    assert [theory.part_from_drive("half", layers) for layers in (2, 3, 4, 5)] == [
        1 / 2, 1 / 3, 1 / 2, 2 / 5,
    ]  # fmt: skip
    assert theory.part_from_drive("drive", 3) == 1 and theory.part_from_drive("pinned", 3) == 0
    # Of the second set of four layers, there and back.
    taken = [4, 5, 6, 7, 7, 6, 5, 4]
    assert theory.from_drive("half", taken, 4) == [5, 7, 7, 5]
    assert theory.from_drive("drive", taken, 4) == taken
    assert theory.from_drive("slots", taken, 4) == []


def test_rounds_alternate() -> None:
    names = ["compute", "transfer", "raw", "forebay"]
    turns = [in_turn(names, number) for number in range(-1, 9)]
    assert all(set(turn) == set(names) for turn in turns)
    firsts = [turn.index("raw") < turn.index("forebay") for turn in turns[1:]]
    assert firsts.count(True) == 5 and firsts[:2] == [True, False]


def test_samples_are_summed_up() -> None:
    point = point_of(4000, {"ours": [0.14, 0.15, 0.28]})
    assert point["compute_s"] == pytest.approx(0.12) and point["turns"] == 3
    assert point["transfer_layer_s"] == pytest.approx(0.02)
    ours = point["ways"]["ours"]
    assert ours["line_s"] == pytest.approx(0.14) and ours["reads"] == 3
    assert (ours["pass_low_s"], ours["pass_s"], ours["pass_high_s"]) == (0.14, 0.15, 0.28)
    assert ours["compute_ratio"] == pytest.approx(1) and ours["stall_s"] == 0.004
    assert ours["cpu_s_per_gb"] == pytest.approx(0.5 / 3)
    assert len(point["samples"]["ours"]) == 4, "warm-up passes are reported as well"


def test_passes_from_rest_are_separated_where_others_follow() -> None:
    samples = {
        "compute": samples_of([0.12] * 3, forward_s=0.12),
        "transfer": samples_of([0.06] * 3),
        "ours": [
            Sample(turn, place, wall, 0.5)
            for turn, walls in enumerate([(9.0, 8.0), (0.3, 0.2, 0.22), (0.4, 0.21, 0.19)], -1)
            for place, wall in enumerate(walls)
        ],
    }
    point = summed_up(Point("forward", 3, 10**9, 4000), samples, {"ours": 3})
    ours = point["ways"]["ours"]
    assert ours["rested_s"] == 0.35 and ours["pass_s"] == pytest.approx(0.205)
    assert (ours["pass_low_s"], ours["pass_high_s"]) == (0.19, 0.22)
    assert [sample["place"] for sample in point["samples"]["ours"]] == [0, 1, 0, 1, 2, 0, 1, 2]
    cells = report.drawn(result_of([point])).splitlines()[1].split()
    assert cells[7:9] == ["+46.4%", "+150.0%"]


def test_other_words_and_another_order_weigh_otherwise() -> None:
    torch = torch_or_skip()
    import layer_file

    count, key = layer_file._PART + 1000, (0x9E3779B97F4A7C15 * 3) % (1 << 62)
    words = torch.empty(count, dtype=torch.int64).random_()
    weight = int(layer_file.weighed(words))
    places = torch.arange(count, dtype=torch.int64)
    assert weight == int((words * (2 * places + 1)).sum())
    # How a layer's weight is known of the first one's.
    assert int(layer_file.weighed(words + key)) == layer_file._signed(weight + count**2 * key)
    swapped = words.clone()
    swapped[:500], swapped[-500:] = words[-500:], words[:500]
    assert int(swapped.sum()) == int(words.sum()) and int(layer_file.weighed(swapped)) != weight


def test_bytes_from_another_source_than_requested_are_warned_of() -> None:
    reported = {"mapped_bytes": 0.0, "file_bytes": 3e9, "drive_bytes": 3e8}
    samples = {
        "compute": samples_of([0.12] * 3, forward_s=0.12),
        "transfer": samples_of([0.06] * 3),
        "ours": samples_of([0.3] * 3, forward_s=0.18, reported=reported),
    }
    point = summed_up(Point("forward", 3, 10**9, 1000), samples, {"ours": 3})
    assert point["ways"]["ours"]["bytes"]["drive_bytes"] == 3 * 10**8
    assert point["ways"]["ours"]["reads"] == 3, "they are among the files'"
    result = result_of([point])
    printed = {
        source: report.strays({**result, "from": source}) for source in ("drive", "page-cache")
    }
    of_it = "warning: ours at 1,000 tokens:"
    assert printed["drive"] == f"{of_it} 90.0% of its bytes came from the page cache"
    assert printed["page-cache"] == f"{of_it} 10.0% of its bytes came from the drive"
    reported["drive_bytes"] = 0.0
    assert not report.strays({**result_of([summed_up(
        Point("forward", 3, 10**9, 1000), samples, {"ours": 3}
    )]), "from": "page-cache"})  # fmt: skip


def test_training_is_held_against_both_ways_of_it() -> None:
    point = point_of(4000, {"ours": [0.5] * 3}, "train")
    assert point["forward_layer_s"] == pytest.approx(0.04)
    assert point["backward_layer_s"] == pytest.approx(0.12)
    # All three layers are on the GPU at the turn.
    assert point["ways"]["ours"]["reads"] == 3
    assert point["ways"]["ours"]["line_s"] == pytest.approx(0.02 + 3 * 0.04 + 3 * 0.12)


def test_the_table_says_from_how_many_tokens_on_each_way_is_free() -> None:
    result = three_points()
    drawn = report.drawn(result).splitlines()
    assert len(drawn) == 7 and len({line.index("ours") for line in drawn[1::2]}) == 1
    for head in ("compute ms", "transfer ms", "overhead", "line ms", "stall ms", "compute ratio"):
        assert head in drawn[0]
    assert drawn[3].split() == [
        "4,000", "ours", "40.00", "20.00", "3", "141.4", "140.0", "+1.0%", "-", "+17.8%",
        "4.0", "1.000", "0.167",
    ]  # fmt: skip
    printed = report.free_from(result).splitlines()
    assert printed[0] == "ours: free from 4,000 tokens on; on its line from 1,000 tokens on"
    assert printed[1] == "slow: free from none of these; on its line from none of these"


def test_free_at_few_tokens_is_not_free_where_more_are_not() -> None:
    result = result_of([point_of(4000, {"ours": [0.14]}), point_of(8000, {"ours": [0.5]})])
    assert report.tokens_from(result, "ours", report.is_free) is None


def main() -> Any:
    spec = importlib.util.spec_from_file_location("layers_main", BENCH / "__main__.py")
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_results_have_their_version(tmp_path: Path) -> None:
    torch_or_skip()
    given = main().arguments(["--out", str(tmp_path), "--file", str(tmp_path / "layers")])
    given.file.write_bytes(b"x")
    result = main()._described(given, "cpu")
    assert (result["layers_schema"], result["simulated"]) == (main().SCHEMA, False)
    assert result["from"] == "page-cache" and result["environment"]["kernel"]
    result["points"] = three_points()["points"]
    main()._write(result, given.out)
    known = json.loads((tmp_path / "layers.json").read_text())
    keys = {"layers_schema", "layers", "layer_bytes", "order", "from", "points"}
    assert keys <= set(known) and known["flags"]["buffers"] == 3
    for point in known["points"]:
        assert {"tokens", "turns", "compute_s", "transfer_layer_s", "ways"} <= set(point)
        for way in point["ways"].values():
            assert {"pass_s", "line_s", "cpu_s_per_gb"} <= set(way)


WRONG = [
    ("--layers 1", "argument --layers: 1 is less than 2"),
    ("--layer-mb big", "argument --layer-mb: invalid number value: 'big'"),
    ("--tokens 8192,,1", "argument --tokens: invalid"),
    ("--order sideways", "argument --order: invalid choice: 'sideways'"),
    ("--from tape", "argument --from: invalid choice: 'tape'"),
    ("--ways forebay,x", "argument --ways: invalid choice: 'x'"),
    ("--buffers 4", "--buffers: at most --layers"),
    ("--from drive --passes 2", "--passes: 1 if a drive is read"),
    ("--query-heads 97", "--query-heads: must be a multiple of --key-heads"),
    ("--head 100", "--head: must be a multiple of 8"),
    ("--file short", "--file: `short` exists, and does not have 7,421,976,576 bytes"),
    ("--layer 3", "unrecognized arguments: --layer 3"),
]


@pytest.mark.parametrize(("line", "expected"), WRONG)
def test_wrong_flags_are_refused(
    line: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("short").write_bytes(b"abc")
    with pytest.raises(SystemExit) as ended:
        main().arguments(line.split())
    printed = capsys.readouterr()
    assert ended.value.code == 2 and printed.out == "" and expected in printed.err
    assert Path("short").read_bytes() == b"abc"


def test_a_machine_without_a_gpu_is_refused(tmp_path: Path) -> None:
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("a GPU")
    done = bench("--tokens", "512,1024,512", folder=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: torch finds no GPU\n" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("order", "source"), [("forward", "drive"), ("train", "pinned"), ("forward", "half")]
)
def test_a_tiny_comparison_runs_on_a_gpu(order: str, source: str, tmp_path: Path) -> None:
    device_or_skip("cuda")
    flags = (
        f"--layers 4 --layer-mb 8 --tokens 128,256 --order {order} --from {source} --hidden 256 "
        "--query-heads 8 --key-heads 2 --head 64 --expert 128 --active 2 --rounds 2 --out out"
    )
    done = bench(*flags.split(), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "free from" in done.stdout
    known = json.loads((tmp_path / "out" / "layers.json").read_text())
    assert known["command"][-len(flags.split()) :] == flags.split()
    assert known["layers_schema"] == main().SCHEMA and not known["simulated"]
    assert known["environment"]["gpu"] and known["environment"]["driver"]
    assert ("plain_reads" in known) == (source in theory.COLD)
    assert [point["tokens"] for point in known["points"]] == [128, 256]
    for point in known["points"]:
        assert {"forebay", "two-buffers", "mmap"} <= set(point["ways"])
        for name in ("compute", "transfer", *point["ways"]):
            turns = [(sample["round"], sample["place"]) for sample in point["samples"][name]]
            places = 1 if source in theory.COLD else 2
            assert turns == [(turn, place) for turn in (-1, 0, 1) for place in range(places)]
        ours = point["ways"]["forebay"]
        # Three of four are still there at the turn. Those from the drive are part of the file's.
        from_drive = ours["bytes"].pop("drive_bytes")
        part = theory.part_from_drive(source, 4)
        assert ours["bytes"]["file_bytes"] == part * sum(ours["bytes"].values())
        assert from_drive == ours["bytes"]["file_bytes"]
        assert ours["reads"] == (5 if order == "train" else 4)
        assert point["allocations"] == 0
        planned = point.get("planned", [])
        assert len(planned) == (2 if source == "half" else 0)
        assert all(len(trial["passes_s"]) == 5 for trial in planned)
        assert all(len(trial["predicted_each_s"]) == 5 for trial in planned)


def test_passes_over_the_prediction_are_reported() -> None:
    trials = [
        {"predicted_s": 2.0, "predicted_each_s": [2.0, 2.2], "passes_s": [2.2, 2.2]},
        {"predicted_s": 2.0, "predicted_each_s": [2.0, 1.8], "passes_s": [1.8, 1.8]},
    ]
    point = {"tokens": 4096, "planned": trials}
    assert report.planned({"points": [point]}) == (
        "predicted at 4,096 tokens: a pass takes 1.000 of the first prediction (0.900 to 1.100, "
        "10.0% off, 2 streams), and 1.000 of its own (0.900 to 1.100, 5.0% off, 4 passes)"
    )
    for trial in trials:
        del trial["predicted_each_s"]  # as before there were any
    assert report.planned({"points": [point]}).endswith("off, 2 streams)")
    assert report.planned({"points": [{"tokens": 1}]}) == ""


def test_stall_and_compute_are_measured_alike() -> None:
    reported = {"compute_s": 0.24, "stall_s": 0.03, "mapped_bytes": 3e9, "file_bytes": 0.0}
    alone = samples_of([0.12] * 3, forward_s=0.12)
    samples = {
        "compute": alone,
        "transfer": samples_of([0.06] * 3),
        "ours": samples_of([0.3] * 3, forward_s=0.18, stall_s=0.05, reported=reported),
    }
    ours = summed_up(Point("forward", 3, 10**9, 1), samples, {"ours": 3})["ways"]["ours"]
    assert ours["compute_ratio"] == pytest.approx(1.5) and ours["stall_s"] == 0.05
    assert ours["bytes"] == {"mapped_bytes": 3 * 10**9, "file_bytes": 0} and ours["reads"] == 3


@pytest.mark.parametrize(("busy", "line"), [(0.18, 0.14), (0.12, 0.14), (0.09, 0.11), (0, 0.14)])
def test_a_compute_that_takes_less_during_loads_makes_the_line_shorter(busy: float, line: float) -> None:
    samples = {
        "compute": samples_of([0.12] * 3, forward_s=0.12),
        "transfer": samples_of([0.06] * 3),
        "ours": samples_of([0.3] * 3, forward_s=busy),
        "other": samples_of([0.28] * 3, forward_s=0.12),
    }
    point = summed_up(Point("forward", 3, 10**9, 1), samples, {"ours": 3, "other": 3})
    ours, other = point["ways"]["ours"], point["ways"]["other"]
    assert ours["line_s"] == pytest.approx(line)
    assert ours["over_line"] == pytest.approx(0.3 / line)
    assert other["line_s"] == pytest.approx(0.14) and other["over_line"] == pytest.approx(2)
    assert point["compute_s"] == pytest.approx(0.12), "what it is over is the same alone"


def test_each_direction_is_shortened_by_itself() -> None:
    samples = {
        "compute": samples_of([0.48] * 3, forward_s=0.12, backward_s=0.36),
        "transfer": samples_of([0.06] * 3),
        "ours": samples_of([1.0] * 3, forward_s=0.06, backward_s=0.45),
    }
    point = summed_up(Point("train", 3, 10**9, 1), samples, {"ours": 3})
    # The first transfer, half of the way there, and all of the way back.
    assert point["ways"]["ours"]["line_s"] == pytest.approx(0.01 + 0.06 + 0.36)
    assert point["ways"]["ours"]["compute_ratio"] == pytest.approx(0.51 / 0.48)


def test_passes_from_a_drive_are_held_against_the_shorter_line_too() -> None:
    samples = {
        "compute": samples_of([0.12] * 3, forward_s=0.12),
        "transfer": samples_of([0.03] * 3),
        "raw": samples_of([0.06, 0.03, 0.06]),
        "forebay": samples_of([0.22, 0.20, 0.22], forward_s=0.09),
    }
    ours = summed_up(Point("forward", 3, 10**9, 1, 1.0), samples, {"forebay": 3})["ways"]["forebay"]
    assert ours["over_line"] == pytest.approx(0.22 / (0.02 + 0.09))


def test_plain_reads_bring_whole_layers_by_any_kind(tmp_path: Path) -> None:
    path, nbytes = tmp_path / "layers", 3 * 4096 * 257
    path.write_bytes(bytes(4 * nbytes))
    reads = raw.Raw(path, nbytes, [2, 0, 2])
    assert reads.kind in raw.KINDS and reads.tried.keys() == set(raw.KINDS)
    assert sorted({len(tries) for tries in reads.tried.values()}) == [1, 3]
    assert all(reads.read([3, 1], kind) > 0 for kind in raw.KINDS)
    reported = reads.described()
    kinds = [(one["threads"], one["request_bytes"]) for one in reported["tried"]]
    assert kinds == raw.KINDS and (reported["threads"], reported["request_bytes"]) == reads.kind
    assert reported["past_page_cache"] == reads.is_direct
    threads, size = reads.kind
    printed = f"plain reads: {threads} threads, block size {size >> 20} MiB, with"
    assert report.plain_reads(reported).startswith(printed) and report.plain_reads(None) == ""
    os.truncate(path, 3 * nbytes + 4096)
    with pytest.raises(OSError, match="cannot read `.*` at .*: it ends there"):
        reads.read([3])


def made(path: Path, seed: int = 1) -> Any:
    torch_or_skip()
    import layer_file

    return layer_file.made(path, LAYERS, NBYTES, "cpu", seed)


def test_layers_are_written_once_and_found_again(tmp_path: Path) -> None:
    torch = torch_or_skip()
    import layer_file

    path = tmp_path / "layers"
    first = made(path)
    words = torch.from_file(str(path), size=2 * LAYERS * NBYTES // 8, dtype=torch.int64)
    assert [int(layer_file.weighed(one)) for one in words.split(NBYTES // 8)] == first.sums
    before = path.stat()
    assert made(path) == first
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("kind", ["other bytes", "another seed", "cut", "longer", "a late one"])
def test_an_existing_file_is_left_as_it_is(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "layers"
    made(path, seed=2 if kind == "another seed" else 1)
    old = path.read_bytes()
    if kind == "cut":
        old = old[:NBYTES]  # the first layer alone, as a run that was killed leaves it
    elif kind == "longer":
        old += bytes(NBYTES)
    elif kind != "another seed":
        old = b"precious"
    path.write_bytes(old)
    if kind == "a late one":  # another program makes it between a look and the opening
        monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(ValueError, match="layers` has other contents.*or remove it"):
        made(path)
    assert path.read_bytes() == old


def test_a_file_that_cannot_be_finished_is_removed(tmp_path: Path) -> None:
    with mounted(tmp_path, write=errno.EIO) as folder:
        with pytest.raises(forebay.Error, match="cannot write `.*layers`"):
            made(folder / "layers")
        assert list(folder.iterdir()) == []
