"""Layers that come to a real GPU while it is busy: what is queued on the compute's stream sees the
bytes of its layer, whatever becomes of its place, its file and its stream meanwhile."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import content
from forebay.stream import Layer, LayerStream
from tensors import device_or_skip, torch_or_skip

torch = torch_or_skip()

# Each of two parts, so many bytes of which are the first.
LAYERS, NBYTES, CUT = 6, 4_000_037, 1_000_003
# Of the GPU's clock: some 10 ms, in which several layers come.
BUSY = 20_000_000
# Until a file was not changed for long enough to have its pages pinned.
SETTLED = 2.1
PINNED = {"host_budget": LAYERS * (NBYTES + 8192), "mapped_budget": 0}
PAGES = {"mapped_budget": LAYERS * (NBYTES + 8192)}
SLOTS = {"mapped_budget": 0}


class Model:
    """Layers of two parts each at odd places of a file, and what is in them."""

    def __init__(self, path: Path) -> None:
        self.path, self.data = path, bytearray(content(1001 + LAYERS * NBYTES, 8))
        path.write_bytes(self.data)
        self.file = forebay.open(path, "r+")
        self.starts = [1001 + number * NBYTES for number in range(LAYERS)]
        self.layers = [
            [(self.file, start, CUT), (self.file, start + CUT, NBYTES - CUT)]
            for start in self.starts
        ]

    def of(self, number: int) -> bytes:
        """A layer's bytes."""
        return bytes(self.data[self.starts[number] :][:NBYTES])

    def bring_in(self) -> None:
        """Reads the file, so that it is in the page cache."""
        self.path.read_bytes()

    def stream(self, buffers: int = 2, **options: Any) -> LayerStream:
        """Its layers on the GPU, which has room for a few of them."""
        return LayerStream(self.layers, "cuda", gpu_budget=buffers * (NBYTES + 8192), **options)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    device_or_skip("cuda")
    made = Model(tmp_path / "model")
    yield made
    torch.cuda.synchronize()
    made.file.close()


def queued(layer: Layer, work: int = BUSY) -> list[Any]:
    """A copy of a layer's parts, which the GPU makes once it has done other work."""
    torch.cuda._sleep(work)
    return [torch.from_dlpack(part).clone() for part in layer]


def held(parts: list[Any]) -> bytes:
    return b"".join(part.cpu().numpy().tobytes() for part in parts)


def passes(model: Model, stream: LayerStream, count: int) -> None:
    """Takes passes without a look at what the GPU does, and checks then what it saw."""
    seen = [(layer.index, queued(layer)) for _ in range(count) for layer in stream]
    assert len(seen) == count * len(stream)
    for place, (number, parts) in enumerate(seen):
        assert held(parts) == model.of(number), f"layer {number}, taken as {place}"


def settle(model: Model, stream: LayerStream) -> None:
    """Takes passes until all comes from pinned pages."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        # The kernel may take pages back that nobody has used for a while.
        model.bring_in()
        passes(model, stream, 1)
        last = stream.statistics()["passes"][-1]
        if last["mapped_bytes"] > 0 and last["file_bytes"] == 0:
            return
    pytest.fail(f"not all pages are pinned: {stream.mapped()}")


@pytest.mark.parametrize("order", ["forward", "backward", "training", [0, 0, 5, 2, 0, 3]])
@pytest.mark.parametrize("way", [SLOTS, PINNED, PAGES], ids=["slots", "pinned", "pages"])
@pytest.mark.parametrize("buffers", [2, 3])
def test_compute_that_is_late_sees_its_own_layers(
    model: Model, order: str | list[int], way: dict[str, int], buffers: int
) -> None:
    if way is PAGES:
        time.sleep(SETTLED)
    model.bring_in()
    with model.stream(buffers, order=order, **way) as stream:
        passes(model, stream, 4)


def test_compute_on_another_stream_is_waited_for(model: Model) -> None:
    compute = torch.cuda.Stream()
    with torch.cuda.stream(compute), model.stream() as stream:
        passes(model, stream, 3)


def test_layers_from_the_drive_and_in_slices(model: Model) -> None:
    for options in [{}, {"gpu_budget": 2 * NBYTES - CUT}, {"check": True}]:
        model.file.evict()
        with LayerStream(model.layers, "cuda", mapped_budget=0, **options) as stream:
            assert (stream.slices > 1) == ("gpu_budget" in options)
            for _ in range(2):
                seen: dict[int, bytes] = {}
                for layer in stream:
                    seen[layer.index] = seen.get(layer.index, b"") + held(queued(layer))
                assert all(seen[number] == model.of(number) for number in range(LAYERS))


def test_what_stays_pinned_is_copied_from_there(model: Model) -> None:
    with model.stream(order="told", **PINNED) as stream:
        seen = []
        for _ in range(4):
            stream.prefetch(range(LAYERS))
            seen += [(layer.index, queued(layer)) for layer in stream]
        times = stream.statistics()["layers"]
    assert [number for number, _ in seen] == list(range(LAYERS)) * 4
    for number, parts in seen:
        assert held(parts) == model.of(number)
    assert all(found["pinned"] for found in times[LAYERS:] if found["bytes"])


def test_layers_that_are_changed_are_written_back(model: Model) -> None:
    with model.stream(3, **SLOTS) as stream:
        for _ in range(2):
            for layer in stream:
                torch.cuda._sleep(BUSY)
                for part in layer:
                    torch.from_dlpack(part).bitwise_xor_(0x5A)
                layer.write_back()
            first = model.data[:1001]
            model.data = first + bytearray(byte ^ 0x5A for byte in model.data[1001:])
        stream.flush()
        assert model.path.read_bytes() == model.data
        passes(model, stream, 2)


def test_a_stream_is_closed_while_its_layers_are_used(model: Model) -> None:
    for way in [SLOTS, PINNED]:
        stream = model.stream(3, **way)
        seen = [(layer.index, queued(layer, 10 * BUSY)) for layer in stream]
        stream.close()
        # What was given back is somebody else's from here on.
        torch.cuda.empty_cache()
        other = torch.full((4 * NBYTES,), 7, dtype=torch.uint8, device="cuda")
        for number, parts in seen:
            assert held(parts) == model.of(number)
        assert int(other.min()) == 7


def test_two_streams_on_one_gpu(model: Model) -> None:
    with model.stream(**SLOTS) as one, model.stream(3, order="backward", **SLOTS) as other:
        for _ in range(3):
            seen = []
            for pair in zip(one, other, strict=True):
                seen += [(layer.index, queued(layer)) for layer in pair]
            for number, parts in seen:
                assert held(parts) == model.of(number)


def overwrite(model: Model, flags: int) -> None:
    """Turns all whole pages of the file around."""
    length = len(model.data) // 4096 * 4096
    # Direct writes take memory that begins where a page does.
    with mmap.mmap(-1, length) as memory:
        memory[:] = model.data[:length] = bytes(byte ^ 0xFF for byte in model.data[:length])
        try:
            file = os.open(model.path, os.O_WRONLY | flags)
        except OSError as error:
            if error.errno == errno.EINVAL:
                pytest.skip("this folder takes no direct writes")
            raise
        try:
            assert os.pwrite(file, memory, 0) == length
        finally:
            os.close(file)


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["page cache", "direct"])
def test_what_is_overwritten_comes_anew_though_its_pages_were_pinned(
    model: Model, flags: int
) -> None:
    time.sleep(SETTLED)
    with model.stream(**PAGES) as stream:
        settle(model, stream)
        # What was copied just before is not told apart from what is being copied.
        time.sleep(0.1)
        overwrite(model, flags)
        passes(model, stream, 2)
        time.sleep(SETTLED)
        settle(model, stream)


def test_a_file_that_is_replaced_keeps_coming_as_it_was(model: Model, tmp_path: Path) -> None:
    time.sleep(SETTLED)
    with model.stream(**PAGES) as stream:
        settle(model, stream)
        (tmp_path / "new").write_bytes(bytes(len(model.data)))
        (tmp_path / "new").rename(model.path)
        passes(model, stream, 2)


def test_a_file_that_is_cut_fails_a_layer(model: Model) -> None:
    time.sleep(SETTLED)
    stream = model.stream(**PAGES)
    settle(model, stream)
    kept = model.starts[4] + 100
    os.truncate(model.path, kept)
    seen = []
    with pytest.raises((forebay.EndOfFile, forebay.FileChanged), match="layer 4"):
        for layer in stream:
            seen.append((layer.index, queued(layer)))  # noqa: PERF401  # it ends in the middle
    assert [number for number, _ in seen] == [0, 1, 2, 3]
    for number, parts in seen:
        assert held(parts) == model.of(number)
    stream.close()


def test_a_file_that_changes_under_its_copies_is_told_of(model: Model) -> None:
    time.sleep(SETTLED)
    stream = model.stream(**PAGES)
    settle(model, stream)
    # The copy of the third waits for the compute of the first when its bytes change.
    seen = [(layer.index, queued(layer, 30 * BUSY)) for layer in islice(stream, 3)]
    time.sleep(0.1)
    with open(model.path, "r+b") as file:
        file.write(bytes(len(model.data)))
    told, whole, until = 0, None, time.monotonic() + 60
    # Whoever runs ahead of the copies is told when they are over.
    while whole != [bytes(NBYTES)] * LAYERS and time.monotonic() < until:
        try:
            whole = [held(queued(layer, 1)) for layer in stream]
        except forebay.FileChanged as error:
            assert (error.layer, error.bytes) == ("layer 2", None)
            told += 1
    assert told == 1 and whole is not None and set(whole) == {bytes(NBYTES)}
    for number, parts in seen[:2]:
        assert held(parts) == model.of(number)
    stream.close()
