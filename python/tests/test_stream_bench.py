"""The streaming bench's pure parts: what a pass takes at best, tables, and flags."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from forebay.stream_bench import __main__ as bench
from forebay.stream_bench import arguments, sources, table, theory
from forebay.stream_bench.samples import Point, Sample, in_turn, summed_up
from forebay.stream_bench.shape import Shape
from samples import samples_of
from tensors import device_or_skip


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
            assert table.is_free(point, took) == free, name


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
    assert table.over_line(point["ways"]["forebay"]) == pytest.approx(1.02)
    # The reads of other rounds are no measure of it.
    samples["raw"] = samples_of([3 * rate for rate in (4.0, 1.0, 2.0)])
    ours = summed_up(Point("forward", 3, 10**9, 1, 1.0), samples, {"forebay": 3})["ways"]["forebay"]
    assert ours["pass_s"] / ours["line_s"] == pytest.approx(1.02)
    assert ours["over_line"] == pytest.approx(2.04, rel=1e-3)


def test_half_of_an_odd_number_is_read_from_the_drive() -> None:
    assert [sources.part_from_drive("half", layers) for layers in (2, 3, 4, 5)] == [
        1 / 2, 1 / 3, 1 / 2, 2 / 5,
    ]  # fmt: skip
    assert sources.part_from_drive("drive", 3) == 1 and sources.part_from_drive("pinned", 3) == 0
    # Of the second set of four layers, there and back.
    taken = [4, 5, 6, 7, 7, 6, 5, 4]
    assert sources.from_drive("half", taken, 4) == [5, 7, 7, 5]
    assert sources.from_drive("drive", taken, 4) == taken
    assert sources.from_drive("slots", taken, 4) == []


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
    cells = table.drawn(result_of([point])).splitlines()[1].split()
    assert cells[7:9] == ["+46.4%", "+150.0%"]


def test_other_words_and_another_order_weigh_otherwise() -> None:
    torch = pytest.importorskip("torch")
    from forebay.stream_bench import model

    count, key = model._PART + 1000, (0x9E3779B97F4A7C15 * 3) % (1 << 62)
    words = torch.empty(count, dtype=torch.int64).random_()
    weight = int(model.weighed(words))
    places = torch.arange(count, dtype=torch.int64)
    assert weight == int((words * (2 * places + 1)).sum())
    # How a layer's weight is known of the first one's.
    assert int(model.weighed(words + key)) == model._signed(weight + count**2 * key)
    swapped = words.clone()
    swapped[:500], swapped[-500:] = words[-500:], words[:500]
    assert int(swapped.sum()) == int(words.sum()) and int(model.weighed(swapped)) != weight


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
        source: table.strays({**result, "from": source}) for source in ("drive", "page-cache")
    }
    of_it = "warning: ours at 1,000 tokens:"
    assert printed["drive"] == f"{of_it} 90.0% of its bytes came from the page cache"
    assert printed["page-cache"] == f"{of_it} 10.0% of its bytes came from the drive"
    reported["drive_bytes"] = 0.0
    assert not table.strays({**result_of([summed_up(
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
    drawn = table.drawn(result).splitlines()
    assert len(drawn) == 7 and len({line.index("ours") for line in drawn[1::2]}) == 1
    for head in ("compute ms", "transfer ms", "overhead", "line ms", "stall ms", "compute ratio"):
        assert head in drawn[0]
    assert drawn[3].split() == [
        "4,000", "ours", "40.00", "20.00", "3", "141.4", "140.0", "+1.0%", "-", "+17.8%",
        "4.0", "1.000", "0.167",
    ]  # fmt: skip
    printed = table.free_from(result).splitlines()
    assert printed[0] == "ours: free from 4,000 tokens on; on its line from 1,000 tokens on"
    assert printed[1] == "slow: free from none of these; on its line from none of these"


def test_free_at_few_tokens_is_not_free_where_more_are_not() -> None:
    result = result_of([point_of(4000, {"ours": [0.14]}), point_of(8000, {"ours": [0.5]})])
    assert table.tokens_from(result, "ours", table.is_free) is None


def test_results_have_their_version(tmp_path: Path) -> None:
    given = arguments.given(["--file", str(tmp_path / "layers"), "--out", str(tmp_path)])
    given.file.write_bytes(b"x")
    result = bench._described(given, "cpu")
    assert (result["layers_schema"], result["simulated"]) == (bench.SCHEMA, False)
    assert result["from"] == "page-cache"
    result["points"] = three_points()["points"]
    bench._write(result, given.out)
    known = json.loads((tmp_path / "stream_bench.json").read_text())
    # What `forebay report` cannot do without.
    keys = {"layers_schema", "layers", "layer_bytes", "order", "from", "points"}
    assert keys <= set(known) and known["flags"]["buffers"] == 3
    for point in known["points"]:
        assert {"tokens", "turns", "compute_s", "transfer_layer_s", "ways"} <= set(point)
        for way in point["ways"].values():
            assert {"pass_s", "line_s", "cpu_s_per_gb"} <= set(way)


def test_flags_are_looked_at_before_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('on purpose')\n")
    program = (
        f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); "
        "sys.argv[0] = 'bench'; runpy.run_module('forebay.stream_bench', run_name='__main__')"
    )

    def bench(*flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, *flags],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip

    wrong = bench("--order", "sideways")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: --order: it takes one of")
    torchless = bench()
    assert (torchless.returncode, torchless.stdout) == (1, "")
    assert "error: torch is not available: on purpose\nhint: " in torchless.stderr
    assert torchless.stderr.endswith("-m pip install torch`\n")


@pytest.mark.parametrize(
    ("order", "source"), [("forward", "drive"), ("train", "pinned"), ("forward", "half")]
)
def test_a_tiny_comparison_runs_on_a_gpu(order: str, source: str, tmp_path: Path) -> None:
    device_or_skip("cuda")
    flags = (
        f"--layers 4 --layer-mb 8 --tokens 128,256 --order {order} --from {source} --hidden 256 "
        "--query-heads 8 --key-heads 2 --head 64 --expert 128 --active 2 --rounds 2 --out out"
    )
    done = subprocess.run(
        [sys.executable, "-m", "forebay.stream_bench", *flags.split()],
        capture_output=True, text=True, timeout=600, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "free from" in done.stdout
    known = json.loads((tmp_path / "out" / "stream_bench.json").read_text())
    assert known["command"][-len(flags.split()) :] == flags.split()
    assert known["layers_schema"] == bench.SCHEMA and not known["simulated"]
    assert known["environment"]["gpu"] and known["environment"]["driver"]
    assert ("plain_reads" in known) == (source in sources.COLD)
    assert [point["tokens"] for point in known["points"]] == [128, 256]
    for point in known["points"]:
        assert {"forebay", "two-buffers", "mmap"} <= set(point["ways"])
        for name in ("compute", "transfer", *point["ways"]):
            turns = [(sample["round"], sample["place"]) for sample in point["samples"][name]]
            places = 1 if source in sources.COLD else 2
            assert turns == [(turn, place) for turn in (-1, 0, 1) for place in range(places)]
        ours = point["ways"]["forebay"]
        # Three of four are still there at the turn. Those from the drive are part of the file's.
        from_drive = ours["bytes"].pop("drive_bytes")
        part = sources.part_from_drive(source, 4)
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
    assert table.planned({"points": [point]}) == (
        "predicted at 4,096 tokens: a pass takes 1.000 of the first prediction (0.900 to 1.100, "
        "10.0% off, 2 streams), and 1.000 of its own (0.900 to 1.100, 5.0% off, 4 passes)"
    )
    for trial in trials:
        del trial["predicted_each_s"]  # as before there were any
    assert table.planned({"points": [point]}).endswith("off, 2 streams)")
    assert table.planned({"points": [{"tokens": 1}]}) == ""


def test_invalid_arguments_are_refused() -> None:
    command = [sys.executable, "-P", "-m", "forebay.stream_bench", "--layers", "one"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error: --layers: it takes a whole number"), ended.stderr
