"""The streaming bench's pure parts: the compute alone, and during loads of layers."""

from __future__ import annotations

import pytest
from forebay.stream_bench.samples import Point, summed_up
from samples import samples_of


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
