"""What a pass of the streaming bench takes at best."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest
from forebay.stream_bench import theory


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


def test_training_reads_nothing_again_that_is_there_at_the_turn() -> None:
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
