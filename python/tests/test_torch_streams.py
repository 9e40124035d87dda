"""Layers that come to a real GPU while it is busy: what is queued on the compute's stream sees the
bytes of its layer, whatever becomes of its place and its stream meanwhile."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from forebay.stream import LayerStream
from tensors import device_or_skip, torch_or_skip

torch = torch_or_skip()

from late import (  # noqa: E402  # after it is known that there is a torch
    ALL,
    BUSY,
    CUT,
    LAYERS,
    ROOM,
    SETTLED,
    Copy,
    Model,
    compare,
    held,
    queued,
    settle,
)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    device_or_skip("cuda")
    made = Model(tmp_path / "model")
    yield made
    torch.cuda.synchronize()
    made.file.close()


@pytest.mark.parametrize("order", ["forward", "backward", "training", [0, 0, 4, 2, 0, 3]])
@pytest.mark.parametrize("budget", [0, ALL], ids=["slots", "pages"])
@pytest.mark.parametrize("buffers", [2, 3])
def test_late_compute_sees_layers_of_any_order(
    model: Model, order: str | list[int], budget: int, buffers: int
) -> None:
    time.sleep(SETTLED if budget else 0)
    model.path.read_bytes()
    forward = list(range(LAYERS))
    of = {"forward": forward, "backward": forward[::-1], "training": forward + forward[::-1]}
    with model.stream(buffers, order=order, mapped_budget=budget) as stream:
        seen = [queued(layer) for _ in range(4) for layer in stream]
    compare(model, seen)
    assert [number for number, _, _ in seen] == (of[order] if isinstance(order, str) else order) * 4


def test_compute_on_another_stream_is_waited_for(model: Model) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        with model.stream() as stream:
            seen = [queued(layer) for _ in range(3) for layer in stream]
        torch.cuda.synchronize()
    compare(model, seen)


def test_late_compute_sees_slices(model: Model) -> None:
    budget = 2 * (ROOM - CUT)
    with LayerStream(model.layers, "cuda", gpu_budget=budget, mapped_budget=0) as stream:
        assert stream.slices == 2
        seen = [queued(layer) for _ in range(3) for layer in stream]
    halves = [held(copy, places) for _, copy, places in seen]
    found = [first + second for first, second in zip(halves[::2], halves[1::2], strict=True)]
    assert found == [model.of(number) for number in range(LAYERS)] * 3


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("way", ["slots", "drive"])
def test_late_compute_sees_bytes_through_slots(model: Model, way: str, check: bool) -> None:
    model.path.read_bytes()
    cold, seen = False, []
    with model.stream(mapped_budget=0, check=check) as stream:
        for _ in range(4):
            if way == "drive":
                cold = model.file.evict().get("resident") == 0 or cold
            seen += [queued(layer) for layer in stream]
        torch.cuda.synchronize()
        passes = stream.statistics()["passes"]
    compare(model, seen)
    assert [number for number, _, _ in seen] == list(range(LAYERS)) * 4
    assert all(found["mapped_bytes"] == found["pinned_bytes"] == 0 for found in passes)
    if cold:
        assert sum(found["drive_bytes"] for found in passes) > 0


def test_late_compute_sees_bytes_from_pinned_memory(model: Model) -> None:
    seen = []
    with model.stream(order="appended", host_budget=ALL, mapped_budget=0) as stream:
        for _ in range(4):
            stream.prefetch(range(LAYERS))
            seen += [queued(layer) for layer in stream]
        torch.cuda.synchronize()
        times = stream.statistics()["layers"]
    compare(model, seen)
    assert all(found["pinned"] for found in times[LAYERS:] if found["bytes"])


@pytest.mark.parametrize("check", [False, True])
def test_late_compute_sees_bytes_from_pinned_pages(model: Model, check: bool) -> None:
    time.sleep(SETTLED)
    with model.stream(mapped_budget=ALL, check=check) as stream:
        settle(model, stream)
        compare(model, [queued(layer) for _ in range(4) for layer in stream])


@pytest.mark.parametrize("budget", ["host_budget", "mapped_budget"])
def test_epochs_go_there_and_back(model: Model, budget: str) -> None:
    forward, seen, at = list(range(LAYERS)), [], []
    options: dict[str, int] = {"mapped_budget": 0, budget: ALL}
    with model.stream(order="training", passes=2, **options) as stream:
        assert len(stream) == 2 * LAYERS
        for _ in range(2):
            for layer in stream:
                at.append(layer.position)
                seen.append(queued(layer))
        assert list(stream) == [], "no more passes were requested"
    assert at == list(range(4 * LAYERS))
    assert [number for number, _, _ in seen] == (forward + forward[::-1]) * 2
    compare(model, seen)


@pytest.mark.parametrize("ended_by", ["flush", "close"])
def test_only_what_is_in_layers_is_written_back(model: Model, ended_by: str) -> None:
    expected = bytearray(model.data)
    for start, end in model.at:
        expected[start:end] = bytes(byte ^ 0x5A for byte in expected[start:end])
    stream = model.stream(mapped_budget=0)
    for layer in stream:
        torch.cuda._sleep(BUSY)
        for part in layer:
            torch.from_dlpack(part).bitwise_xor_(0x5A)
        layer.write_back()
    if ended_by == "flush":
        stream.flush()
        assert model.path.read_bytes() == expected
        compare(model, [queued(layer) for layer in stream], bytes(expected))
        assert stream.statistics()["written_bytes"] == sum(end - at for at, end in model.at)
    stream.close()
    assert model.path.read_bytes() == expected


def test_a_layer_used_after_its_release_has_nans(model: Model) -> None:
    # With room for all, and no other pass, nothing comes to its place.
    stream = model.stream(LAYERS, check=True, passes=1, mapped_budget=0)
    layer = next(stream)
    number, copy, places = queued(layer)
    view = torch.from_dlpack(layer.memory)
    next(stream)
    torch.cuda.synchronize()
    assert held(copy, places) == model.of(number)
    assert set(held(view, places)) == {0xFF}
    del view, layer
    gc.collect()
    stream.close()


@pytest.mark.parametrize("budget", [0, ALL], ids=["slots", "pages"])
def test_work_queued_when_a_loop_is_left_keeps_its_layer(model: Model, budget: int) -> None:
    time.sleep(SETTLED if budget else 0)
    seen = []
    with pytest.raises(KeyError), model.stream(mapped_budget=budget) as stream:
        for layer in stream:
            seen.append(queued(layer, 10 * BUSY))
            if layer.index == 3:
                raise KeyError
    # An allocation now may get memory that the stream had.
    torch.cuda.empty_cache()
    other = torch.full((3 * ROOM,), 7, dtype=torch.uint8, device="cuda")
    with model.stream(order="backward", mapped_budget=0) as again:
        seen += [queued(layer, 1) for layer in again]
    compare(model, seen)
    assert set(other.cpu().numpy().tobytes()) == {7}


def test_memory_in_use_outlives_its_stream(model: Model) -> None:
    stream = model.stream(passes=1, mapped_budget=0)
    for layer in stream:
        if layer.index == LAYERS - 1:
            view, places = torch.from_dlpack(layer.memory), layer.places
    with pytest.warns(ResourceWarning, match=f"still in use: layer {LAYERS - 1}"):
        stream.close()
    with model.stream(mapped_budget=0) as other:
        compare(model, [queued(layer) for layer in other])
    assert held(view, places) == model.of(LAYERS - 1)


@pytest.mark.parametrize("budgets", [(0, 0), (ALL, 0)], ids=["slots", "pages and slots"])
def test_threads_have_streams_of_their_own(model: Model, budgets: tuple[int, int]) -> None:
    time.sleep(SETTLED if any(budgets) else 0)

    def passes(order: str, budget: int) -> list[Copy]:
        with torch.cuda.stream(torch.cuda.Stream()):
            with model.stream(order=order, mapped_budget=budget) as stream:
                seen = [queued(layer) for _ in range(4) for layer in stream]
            torch.cuda.synchronize()
        return seen

    with ThreadPoolExecutor(2) as threads:
        running = [
            threads.submit(passes, order, budget)
            for order, budget in zip(("forward", "backward"), budgets, strict=True)
        ]
        forward, backward = (one.result(timeout=120) for one in running)
    assert [number for number, _, _ in forward] == list(range(LAYERS)) * 4
    assert [number for number, _, _ in backward] == list(range(LAYERS))[::-1] * 4
    compare(model, forward + backward)
