"""Transfers in the order of a stream, on the simulated GPU: its default stream is number 0."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import pytest
from arrays import SimArray

Data = tuple[Path, bytes]
Sim = Callable[[int], SimArray]


class Stream:
    """A stream as CUDA's own Python library shows it."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, 0)


class TorchStream:
    """A stream as torch shows it."""

    cuda_stream = 0


class Marked(SimArray):
    """An array whose library records the streams that use it, as torch does."""

    def __init__(self, buffer: forebay.Buffer) -> None:
        super().__init__(buffer)
        self.marks: list[Any] = []

    def record_stream(self, stream: Any) -> None:
        self.marks.append(stream)


class MarkedHost(bytearray):
    """The same on the host."""

    def record_stream(self, stream: Any) -> None:
        raise AssertionError("no stream uses it")


@pytest.mark.parametrize("stream", [0, Stream(), TorchStream()], ids=["raw", "protocol", "torch"])
def test_memory_is_marked_as_used_by_the_stream(
    engine: forebay.Engine, data: Data, tmp_path: Path, stream: Any
) -> None:
    path, bytes_ = data
    target = Marked(engine.allocate(100_000, "sim"))
    with engine.open(path) as file, engine.open(tmp_path / "copy", "w") as copy:
        assert file.read_into(target, 7, stream=stream) == 100_000
        assert target.marks == [stream] and target.tobytes() == bytes_[7:100_007]
        assert copy.start_write_from(target, stream=stream).result(60) == 100_000
        assert target.marks == [stream, stream]
        for other in [None, "current"]:
            file.read_into(target, stream=other)
        file.start_read_into(target).result(60)
        assert len(target.marks) == 2, "no stream orders these"
    assert (tmp_path / "copy").read_bytes() == bytes_[7:100_007]


def test_a_target_is_kept_until_the_stream_has_passed_its_bytes(
    data: Data, slow_gpu: forebay.Engine
) -> None:
    path, bytes_ = data
    target = Marked(slow_gpu.allocate(300_000, "sim"))
    before = sys.getrefcount(target)
    with slow_gpu.open(path) as file:
        transfer = file.start_read_into(target, stream=0)
        assert sys.getrefcount(target) > before and not transfer.done()
        assert transfer.result(60) == 300_000
    assert sys.getrefcount(target) == before
    assert target.tobytes() == bytes_[:300_000]


COUNT, PIECE = 500, 1000


def strewn(file: forebay.File, bytes_: bytes) -> tuple[dict[str, Any], bytes]:
    """Pieces of a file from its end to its begin, and what they hold."""
    offsets = [n * 2 * PIECE for n in range(COUNT)][::-1]
    at = [n * PIECE for n in range(COUNT)]
    arrays = {"files": file, "offsets": offsets, "lengths": [PIECE] * COUNT, "at": at}
    return arrays, b"".join(bytes_[offset : offset + PIECE] for offset in offsets)


@pytest.mark.parametrize("stream", [0, Stream()], ids=["raw", "protocol"])
def test_many_requests_are_ordered_as_one(
    engine: forebay.Engine, data: Data, tmp_path: Path, stream: Any
) -> None:
    path, bytes_ = data
    target = Marked(engine.allocate(COUNT * PIECE, "sim"))
    with engine.open(path) as file, engine.open(tmp_path / "copy", "w") as copy:
        arrays, expected = strewn(file, bytes_)
        assert engine.read_many(target=target, stream=stream, **arrays).counts == [PIECE] * COUNT
        assert target.marks == [stream] and target.tobytes() == expected
        arrays["files"] = copy
        transfer = engine.start_write_many(source=target, stream=stream, sync="data", **arrays)
        assert transfer.result(60).bytes == COUNT * PIECE
        assert transfer.progress() == (COUNT * PIECE, COUNT * PIECE)
        assert {share["route"] for share in transfer.report()["routes"]} <= {"cached", "staged"}
    written = (tmp_path / "copy").read_bytes()
    parts = [written[offset : offset + PIECE] for offset in arrays["offsets"]]
    assert b"".join(parts) == expected


def test_many_targets_are_marked_once_each_and_kept(
    data: Data, slow_gpu: forebay.Engine
) -> None:
    path, bytes_ = data
    targets = [Marked(slow_gpu.allocate(100_000, "sim")) for _ in range(3)]
    before = [sys.getrefcount(target) for target in targets]
    with slow_gpu.open(path) as file:
        requests = [(n, 50_000, target) for n, target in enumerate(targets)]
        transfer = file.start_readv([*requests, *requests], stream=0)
        assert all(sys.getrefcount(t) > b for t, b in zip(targets, before, strict=True))
        assert not transfer.done()
        assert transfer.result(60).counts == [50_000] * 6
        done: list[object] = []
        transfer.add_done_callback(done.append)
        assert done == [transfer]
    del requests
    assert [sys.getrefcount(target) for target in targets] == before
    for n, target in enumerate(targets):
        assert target.marks == [0]
        assert target.tobytes()[:50_000] == bytes_[n : n + 50_000]


def test_each_request_in_a_streams_order_has_its_own_end(
    engine: forebay.Engine, data: Data, sim: Sim
) -> None:
    path, bytes_ = data
    target = sim(100)
    with engine.open(path) as file:
        requests = [(0, 10, target), (len(bytes_) - 5, 10, target), (len(bytes_) + 7, 10, target)]
        transfer = file.start_readv(requests, stream=0)
        with pytest.raises(forebay.EndOfFile) as error:
            transfer.result(60)
        assert error.value.bytes == 5 and error.value.offset == len(bytes_) - 5
        assert file.readv(requests, check=False, stream=0).counts == [10, None, None]
        assert file.readv(requests, exact=False, stream=0).counts == [10, 5, 0]
        assert file.readv([], stream=0).counts == []
    with pytest.raises(ValueError, match="is closed"):
        file.start_readv(requests, stream=0)


def test_a_cancel_of_what_is_ordered_says_so(data: Data, slow_gpu: forebay.Engine) -> None:
    target = SimArray(slow_gpu.allocate(3_000_000, "sim"))
    before = sys.getrefcount(target)
    with slow_gpu.open(data[0]) as file:
        requests = [(n * 10_000, 10_000, target) for n in range(300)]
        transfer = file.start_readv(requests, stream=0)
        del requests
        assert transfer.cancel()
        with pytest.raises(forebay.Cancelled):
            transfer.result(60)
        assert transfer.cancelled()
    assert sys.getrefcount(target) == before


def test_requests_that_a_stream_cannot_hold_are_refused(
    engine: forebay.Engine, data: Data, sim: Sim
) -> None:
    target = sim(1000)
    with engine.open(data[0]) as file:
        for keywords, word in [
            ({"stream": 0, "route": "staged"}, "omit `route`"),
            ({"stream": 1 << 40}, "stream"),
        ]:
            with pytest.raises(forebay.Error, match=word):
                file.start_readv([(0, 10, target)], **keywords)  # type: ignore[arg-type]
        for many, passes in [(22_000, True), (22_001, False), (160_000, False)]:
            zeros = [0] * many
            arrays = {"offsets": zeros, "lengths": [1] * many, "at": zeros}
            if passes:
                moved = engine.start_read_many(files=file, **arrays, target=target, stream=0)
                assert len(moved.result(60)) == many
                continue
            with pytest.raises(forebay.RequestError, match="several calls, each of 22000 pieces"):
                engine.start_read_many(files=file, **arrays, target=target, stream=0)


def test_a_library_that_refuses_the_mark_ends_the_call(
    engine: forebay.Engine, data: Data
) -> None:
    class Refuses(SimArray):
        def record_stream(self, stream: Any) -> None:
            raise LookupError(f"{stream} is none of ours")

    target = Refuses(engine.allocate(1000, "sim"))
    before = sys.getrefcount(target)
    with engine.open(data[0]) as file:
        with pytest.raises(LookupError, match="none of ours"):
            file.start_read_into(target, stream=0)
        assert file.read_into(target) == 1000
    assert sys.getrefcount(target) == before


def test_memory_of_the_host_is_in_no_streams_order(engine: forebay.Engine, data: Data) -> None:
    with engine.open(data[0]) as file:
        for call in [file.read_into, file.start_read_into]:
            with pytest.raises(forebay.RequestError, match="this is host memory"):
                call(MarkedHost(10), stream=0)
        for many in [file.readv, file.start_readv]:
            with pytest.raises(forebay.RequestError, match="this is host memory"):
                many([(0, 10, MarkedHost(10))], stream=0)
