"""Layers that come to the simulated GPU ahead of the compute."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import time
import weakref
from itertools import islice
from pathlib import Path

import forebay
import pytest
from conftest import content
from forebay.stream import LayerStream

LAYERS, NBYTES = 5, 300_000

Parts = list[tuple[forebay.File, int, int]]


@pytest.fixture
def model(engine: forebay.Engine, tmp_path: Path) -> tuple[list[Parts], list[bytes]]:
    """Layers of two parts each, and what is in them."""
    path, data = tmp_path / "model", content(LAYERS * NBYTES)
    path.write_bytes(data)
    file = engine.open(path)
    layers, expected = [], []
    for layer in range(LAYERS):
        start, cut = layer * NBYTES, 100_001
        layers.append([(file, start, cut), (file, start + cut, NBYTES - cut)])
        expected.append(data[start : start + NBYTES])
    return layers, expected


def held(layer: forebay.stream.Layer) -> bytes:
    """A layer's bytes, part by part."""
    return b"".join(part.tobytes() for part in layer)


@pytest.mark.parametrize("order", ["forward", "backward", "training", [3, 3, 1]])
def test_each_loop_is_a_pass(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]], order: str | list[int]
) -> None:
    layers, expected = model
    forward = list(range(LAYERS))
    wanted = {"forward": forward, "backward": forward[::-1], "training": forward + forward[::-1]}
    taken = []
    with LayerStream(
        layers, "sim", order=order, engine=engine, progress=lambda layer: taken.append(layer.index)
    ) as stream:
        for _ in range(2):
            taken.clear()
            for layer in stream:
                assert held(layer) == expected[layer.index]
                assert layer.name == f"layer {layer.index}"
            assert taken == (wanted[order] if isinstance(order, str) else order)
        reported = stream.statistics()
    passes, routes = reported["passes"], reported["routes"]
    assert [found["layers"] for found in passes] == [len(taken)] * 2
    assert all(found["compute_s"] >= 0 and found["stall_s"] >= 0 for found in passes)
    assert sum(share["bytes"] for share in routes) == sum(found["file_bytes"] for found in passes)
    assert all(share["route"] == "host" and share["reason"] for share in routes)
    assert all(found["drive_bytes"] <= found["file_bytes"] for found in passes)


def test_layers_stay_in_pinned_memory(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]]
) -> None:
    layers, expected = model
    budgets = {"gpu_budget": 2 * NBYTES + 1000, "host_budget": LAYERS * (NBYTES + 4096)}
    with LayerStream(layers, "sim", order="appended", engine=engine, **budgets) as stream:
        for _ in range(3):
            stream.prefetch(range(LAYERS))
            assert [held(layer) for layer in stream] == expected
        times = stream.statistics()["layers"]
        assert stream.tiers == ["pinned"] * LAYERS
        assert stream.prediction() is None
    assert [found["pinned"] for found in times[:LAYERS]] == [False] * LAYERS
    assert all(found["pinned"] for found in times[LAYERS:] if found["bytes"])


def test_after_two_passes_it_is_known_what_binds(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]]
) -> None:
    layers, _ = model
    with LayerStream(layers, "sim", gpu_budget=2 * NBYTES + 1000, engine=engine) as stream:
        assert stream.tiers == ["file"] * LAYERS
        for _ in range(2):
            assert stream.prediction() is None
            for layer in stream:
                layer.memory.tobytes()
        prediction = stream.prediction()
    assert prediction is not None
    # What the host does between two layers counts as compute here, so either may bind.
    assert prediction["limit"] in ("compute", "link", "page_cache", "drive")
    assert prediction["pass_s"] >= prediction["compute_s"] > 0
    assert (prediction["more_gpu"] is None) == (prediction["limit"] == "compute")


def test_an_order_is_announced(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]]
) -> None:
    layers, expected = model
    with LayerStream(layers, "sim", order="appended", engine=engine) as stream:
        assert list(stream) == []
        stream.prefetch(4)
        stream.prefetch([0, 4])
        assert [held(layer) for layer in stream] == [expected[4], expected[0], expected[4]]
        with pytest.raises(ValueError, match="numbers of the 5 layers, from 0"):
            stream.prefetch(5)


def test_a_layer_is_valid_until_the_next(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]]
) -> None:
    layers, expected = model
    with LayerStream(layers, "sim", engine=engine) as stream:
        first = next(stream)
        memory = first[0]
        second = next(stream).keep()
        with pytest.raises(ValueError, match="it was released"):
            first.memory  # noqa: B018
        next(stream)
        assert held(second) == expected[1]
        second.release()
        with pytest.raises(ValueError, match="it was released"):
            second.release()
        with pytest.raises(IndexError, match="part 2 of 2"):
            next(stream)[2]
        with pytest.warns(ResourceWarning, match="still in use: layer 0"):
            stream.close()
        del memory
    gc.collect()


def test_a_layer_used_after_its_release_has_nans(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]]
) -> None:
    layers, _ = model
    # With room for all, and no other pass, nothing comes to its place.
    room = {"gpu_budget": LAYERS * (NBYTES + 1000), "passes": 1}
    with LayerStream(layers, "sim", engine=engine, check=True, **room) as stream:
        memory = next(stream).memory
        assert set(memory.tobytes()) != {0xFF}
        next(stream)
        assert set(memory.tobytes()) == {0xFF}
        del memory


def test_a_loop_over_some_layers_does_not_make_the_next_empty(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]]
) -> None:
    layers, _ = model
    with LayerStream(layers, "sim", engine=engine) as stream:
        for _ in range(2):
            assert [layer.index for _, layer in zip(range(LAYERS), stream, strict=False)] == list(
                range(LAYERS)
            )
        assert [layer.index for layer in stream] == list(range(LAYERS))


@pytest.mark.parametrize("passes", [None, 2])
def test_a_pass_is_begun_again(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]], passes: int | None
) -> None:
    layers, expected = model
    budget = {"gpu_budget": 2 * NBYTES + 1000, "passes": passes}
    with LayerStream(layers, "sim", engine=engine, **budget) as stream:
        for taken in range(LAYERS):
            assert [held(layer) for layer in islice(stream, taken)] == expected[:taken]
            stream.rewind()
        # None of these was a whole pass.
        for _ in range(2):
            assert [held(layer) for layer in stream] == expected
            stream.rewind()
        assert [layer.index for layer in stream] == ([] if passes else list(range(LAYERS)))


def test_the_length_of_a_stream_is_that_of_a_pass(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]]
) -> None:
    layers, _ = model
    for order, count in {"forward": LAYERS, "training": 2 * LAYERS, "appended": None}.items():
        with LayerStream(layers, "sim", order=order, engine=engine) as stream:
            assert stream
            if count is not None:
                assert len(stream) == len(list(stream)) == count
                continue
            with pytest.raises(TypeError, match="has no length"):
                len(stream)
            with pytest.raises(ValueError, match="is given while it runs"):
                stream.rewind()
    with LayerStream(layers, "sim", engine=engine, gpu_budget=NBYTES + 100_000) as stream:
        assert len(stream) == len(list(stream)) == stream.slices * LAYERS > LAYERS


def test_a_copy_of_a_layer_waits_for_its_bytes(
    model: tuple[list[Parts], list[bytes]], slow_gpu: forebay.Engine, tmp_path: Path
) -> None:
    layers, expected = model
    parts = [(slow_gpu.open(file.name), at, size) for file, at, size in layers[0]]
    slow_gpu.gpu("sim")
    with LayerStream([parts], "sim", engine=slow_gpu, passes=1) as stream:
        layer = next(stream)
        with slow_gpu.open(tmp_path / "copy", "w") as copy:
            copy.write_from(layer[0])
            copy.write_from(layer[1], offset=layer[0].nbytes)
    assert (tmp_path / "copy").read_bytes() == expected[0]


def test_a_loop_may_end_by_an_exception(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]]
) -> None:
    layers, _ = model
    with pytest.raises(KeyError), LayerStream(layers, "sim", engine=engine) as stream:
        for _ in stream:
            raise KeyError
    with pytest.raises(ValueError, match="stream is closed"):
        next(stream)


def test_invalid_layers_are_refused(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]]
) -> None:
    layers, _ = model
    file = layers[0][0][0]
    with pytest.raises(ValueError, match="layers need a GPU"):
        LayerStream(layers, "cpu", engine=engine)
    with pytest.raises(TypeError, match="`order` cannot be `random`: it takes `forward`"):
        LayerStream(layers, "sim", order="random", engine=engine)
    with pytest.raises(ValueError, match="2 names for 5 layers"):
        LayerStream(layers, "sim", names=["a", "b"], engine=engine)
    with pytest.raises(forebay.Error, match="it ends behind the file's 1500000 bytes") as refused:
        LayerStream([[(file, 0, 1_500_001)]], "sim", engine=engine)
    assert isinstance(refused.value, ValueError) and refused.value.layer == "layer 0"
    with pytest.raises(ValueError, match="`gpu_budget` cannot be `1000 bytes`"):
        LayerStream(layers, "sim", gpu_budget=1000, engine=engine)
    with pytest.raises(ValueError, match="opened by another engine"):
        LayerStream(layers, "sim", engine=forebay.Engine())
    with pytest.raises(TypeError, match="`stream` cannot be `float`"):
        next(LayerStream(layers, "sim", engine=engine, stream=1.5))


def test_changed_layers_are_written_back(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]], tmp_path: Path
) -> None:
    _, expected = model
    path, other = tmp_path / "model", tmp_path / "other"
    other.write_bytes(bytes(byte ^ 0xFF for byte in path.read_bytes()))
    with engine.open(path, "r+") as file, engine.open(other) as changed:
        layers = [[(file, layer * NBYTES, NBYTES)] for layer in range(LAYERS)]
        with LayerStream(layers, "sim", engine=engine, gpu_budget=2 * NBYTES + 512) as stream:
            for layer in stream:
                assert layer.nbytes == NBYTES
                changed.read_into(layer.memory, layer.index * NBYTES)
                layer.write_back()
            for layer in stream:
                assert held(layer) == bytes(byte ^ 0xFF for byte in expected[layer.index])
            stream.flush()
            assert path.read_bytes() == other.read_bytes()
            assert stream.statistics()["written_bytes"] == LAYERS * NBYTES
            trace = tmp_path / "trace.json"
            stream.write_trace(trace)
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"layer 0", "layer 4", "thread_name"} <= names


def test_a_layer_is_ordered_by_the_stream_for_which_it_was_taken(
    engine: forebay.Engine,
    model: tuple[list[Parts], list[bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with engine.open(tmp_path / "model", "r+") as file:
        layers = [[(file, layer * NBYTES, NBYTES)] for layer in range(LAYERS)]
        with LayerStream(layers, "sim", engine=engine, stream=0) as stream:
            first = next(stream).keep()
            second = next(stream)
            named = stream._named
            # The stream that is current by now is none of the GPU's.
            monkeypatch.setattr(
                stream, "_named", lambda given: 1 << 40 if given == "current" else named(given)
            )
            for call in first.write_back, first.release:
                with pytest.raises(forebay.Error, match="no stream of this device"):
                    call("current")
            first.write_back()
            first.release()
            second.write_back(stream=0)
            second.release(stream=None)
            stream.flush()
            assert stream.statistics()["written_bytes"] == 2 * NBYTES


class Compute:
    """A stream as CUDA's own Python library shows it: the default one."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0


def test_streams_of_layers_that_are_held_stay(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LayerStream(model[0], "sim", engine=engine) as stream:
        named: list[weakref.ref[Compute]] = []

        def name(_: object) -> Compute:
            compute = Compute()
            named.append(weakref.ref(compute))
            return compute

        monkeypatch.setattr(stream, "_named", name)
        layers = []
        for _ in range(2):
            layers.append(next(stream))
        layers[1].keep()
        layers.append(next(stream))
        assert [ref() is not None for ref in named] == [False, True, True]
        layers[1].release()
        next(stream)
        assert [ref() is not None for ref in named] == [False, False, False, True]


def test_layers_of_read_only_files_are_not_written_back(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]]
) -> None:
    with LayerStream(model[0], "sim", engine=engine) as stream:
        layer = next(iter(stream))
        with pytest.raises(ValueError, match="the layer `layer 0`: .*open it for writing") as error:
            layer.write_back()
        assert isinstance(error.value, forebay.RequestError) and error.value.layer == "layer 0"
        layer.release()
        with pytest.raises(ValueError, match="released"):
            layer.write_back()


def test_an_error_names_its_layer(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]], tmp_path: Path
) -> None:
    layers, _ = model
    names = [f"block {number}" for number in range(LAYERS)]
    budget = {"gpu_budget": 2 * NBYTES + 1000, "mapped_budget": 0}
    with LayerStream(layers, "sim", engine=engine, names=names, **budget) as stream:
        next(stream)
        os.truncate(tmp_path / "model", 3 * NBYTES + 10)
        next(stream)
        next(stream)
        with pytest.raises(forebay.EndOfFile, match="cannot read the layer `block 3`: ") as error:
            next(stream)
    assert error.value.layer == "block 3"
    assert error.value.filename == str(tmp_path / "model") and error.value.hint
    with pytest.raises(FileNotFoundError) as other:
        engine.open(tmp_path / "nothing")
    assert isinstance(other.value, forebay.Error) and other.value.layer is None


def test_a_wait_for_a_layer_is_interrupted_and_loses_none(tmp_path: Path) -> None:
    slow = forebay.Engine(slot_size=256 << 10, segment_size=64 << 10)
    slow.gpu("sim:bandwidth=1MB/s")
    path, nbytes = tmp_path / "model", 1_500_000
    path.write_bytes(bytes(2 * nbytes))
    file = slow.open(path)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    layers = [[(file, layer * nbytes, nbytes)] for layer in range(2)]
    with LayerStream(layers, "sim", engine=slow) as stream:
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                next(stream)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert [layer.index for layer in stream] == [0, 1]


def test_pages_are_pinned_where_they_lie(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]], tmp_path: Path
) -> None:
    layers, expected = model
    with LayerStream(
        [[(layer[0][0], layer[0][1], NBYTES)] for layer in layers],
        "sim",
        engine=engine,
        gpu_budget=2 * NBYTES + 512,
        mapped_budget=1 << 30,
    ) as stream:
        until = time.monotonic() + 30
        while stream.mapped()[0] < LAYERS * NBYTES and time.monotonic() < until:
            (tmp_path / "model").read_bytes()
            for layer in stream:
                assert held(layer) == expected[layer.index]
        for layer in stream:
            assert held(layer) == expected[layer.index]
        if stream.mapped()[1] is None:  # a file system whose pages may be used
            assert stream.statistics()["passes"][-1]["mapped_bytes"] > 0


def test_a_file_that_changes_while_its_pages_are_copied_is_reported(tmp_path: Path) -> None:
    slow = forebay.Engine()
    slow.gpu("sim:bandwidth=4MB/s")  # a layer takes 60 ms
    path, size = tmp_path / "model", 256 << 10
    path.write_bytes(bytes(3 * size))
    file = slow.open(path)
    layers = [[(file, number * size, size)] for number in range(3)]
    budgets = {"gpu_budget": 2 * size, "mapped_budget": 1 << 30}
    stream = LayerStream(layers, "sim", engine=slow, **budgets)
    until = time.monotonic() + 30
    while stream.mapped()[0] < 3 * size and time.monotonic() < until:
        path.read_bytes()
        for _ in stream:
            pass
    reason = stream.mapped()[1]
    if reason is not None:
        pytest.skip(reason)
    stream.rewind()
    for _ in range(3):
        next(stream)
    with path.open("r+b") as other:
        other.write(b"\1" * 3 * size)

    def on() -> None:
        while time.monotonic() < until + 30:
            for _ in stream:
                time.sleep(0.01)

    with pytest.raises(forebay.FileChanged, match="cannot read the layer `layer ") as reported:
        on()
    assert "changed while a GPU" in str(reported.value) and str(path) in str(reported.value)
    assert reported.value.bytes is None  # so it is of an earlier layer, and not of one that was cut
    with contextlib.suppress(forebay.FileChanged):  # another one was copied meanwhile
        stream.close()


def test_streams_to_several_gpus_share_what_is_read(
    engine: forebay.Engine, model: tuple[list[Parts], list[bytes]]
) -> None:
    layers, expected = model
    streams = LayerStream.group(layers, ["sim", "sim"], passes=2, engine=engine)
    assert [stream.device for stream in streams] == ["sim:0", "sim:0"]
    for _ in range(2):
        for number, (one, other) in enumerate(zip(*streams, strict=True)):
            assert one.index == other.index == number
            assert held(one) == held(other) == expected[number]
    for stream in streams:
        assert len(stream.statistics()["passes"]) == 2
        stream.close()
    with pytest.raises(ValueError, match="1 stream for 2 GPUs"):
        LayerStream.group(layers, ["sim", "sim"], streams=[None], engine=engine)
    with pytest.raises(ValueError, match="one GPU at least"):
        LayerStream.group(layers, [], engine=engine)
    with pytest.raises(ValueError, match="`device` cannot be `none`: layers need a GPU"):
        LayerStream.group(layers, ["sim", "none"], engine=engine)
