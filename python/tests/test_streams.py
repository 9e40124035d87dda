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
    """An array whose library is told which streams use it, as torch's is."""

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
            with pytest.raises(forebay.RequestError, match="this is the host's"):
                call(MarkedHost(10), stream=0)
