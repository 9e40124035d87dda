"""Many reads and writes that do not block: what they come to, and what befalls them meanwhile."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import pytest
from arrays import SimArray
from conftest import content, waits_in_vain

Data = tuple[Path, bytes]
Sim = Callable[[int], SimArray]

COUNT, PIECE = 100, 4096


def strewn(file: forebay.File) -> dict[str, Any]:
    """Every third piece of a file, one behind the other, as arrays."""
    return {
        "files": file,
        "offsets": [n * 3 * PIECE for n in range(COUNT)],
        "lengths": [PIECE] * COUNT,
        "at": [n * PIECE for n in range(COUNT)],
    }


def gathered(bytes_: bytes) -> bytes:
    return b"".join(bytes_[n * 3 * PIECE : n * 3 * PIECE + PIECE] for n in range(COUNT))


def large(file: forebay.File, target: Any, nbytes: int) -> list[tuple[Any, int, int, Any]]:
    """All of a target in two requests."""
    address = target.buffer.address
    half = nbytes // 2
    return [(file, 0, half, address), (file, half, nbytes - half, address + half)]


@pytest.mark.parametrize("on", ["host", "gpu"])
def test_a_result_is_that_of_the_call_that_waits(
    engine: forebay.Engine, data: Data, sim: Sim, on: str
) -> None:
    path, bytes_ = data
    target: Any = bytearray(COUNT * PIECE) if on == "host" else sim(COUNT * PIECE)
    with engine.open(path) as file:
        transfer = engine.start_read_many(target=target, **strewn(file))
        result = transfer.result(60)
        waited = engine.read_many(target=target, **strewn(file))
    assert result.counts == waited.counts == [PIECE] * COUNT
    assert transfer.result() is result and transfer.exception() is None
    assert transfer.done() and not transfer.running() and not transfer.cancelled()
    assert not transfer.cancel() and transfer.progress() == (COUNT * PIECE, COUNT * PIECE)
    assert (bytes(target) if on == "host" else target.tobytes()) == gathered(bytes_)
    report = transfer.report()
    assert report == result.report() and report["bytes"] == COUNT * PIECE
    assert "ended" in repr(transfer)


def test_tuples_of_many_objects_and_of_addresses(
    engine: forebay.Engine, data: Data, sim: Sim
) -> None:
    path, bytes_ = data
    parts, gpu = [bytearray(n + 1) for n in range(50)], sim(1000)
    with engine.open(path) as file:
        tuples = [(file, 10 * n, n + 1, part) for n, part in enumerate(parts)]
        assert engine.start_read_many(tuples).result(60).bytes == sum(map(len, parts))
        for n, part in enumerate(parts):
            assert part == bytes_[10 * n : 10 * n + n + 1]
            part.append(0)  # nothing holds it any more
        address = gpu.buffer.address
        by_address = [(7, 400, address), (3, 600, address + 400)]
        assert file.start_readv(by_address, device="sim").result(60).counts == [400, 600]
    assert gpu.tobytes() == bytes_[7:407] + bytes_[3:603]


def test_written_bytes_are_there_when_the_future_ends(
    engine: forebay.Engine, tmp_path: Path, sim: Sim
) -> None:
    source, gpu = content(COUNT * PIECE, seed=4), sim(COUNT * PIECE)
    backwards = [n * PIECE for n in range(COUNT)][::-1]
    with engine.open(tmp_path / "x", "w") as file:
        arrays: dict[str, Any] = {"files": file, "lengths": [PIECE] * COUNT}
        arrays |= {"offsets": backwards, "at": backwards[::-1]}
        moved = engine.start_write_many(source=source, sync="data", **arrays).result(60)
        assert moved.counts == [PIECE] * COUNT
        engine.start_read_many(target=gpu, **arrays).result(60)
        assert gpu.tobytes() == source
        assert file.start_writev([(0, 3, b"abc"), (5, 2, b"de")], sync="all").result(60).bytes == 5
    assert (tmp_path / "x").read_bytes()[:7][:3] == b"abc"
    assert (tmp_path / "x").read_bytes()[5:7] == b"de"


def test_the_calls_of_the_process_do_not_wait_either(data: Data, tmp_path: Path) -> None:
    path, bytes_ = data
    with forebay.open(path) as file, forebay.open(tmp_path / "copy", "w") as copy:
        got = bytearray(10)
        assert forebay.start_read_many([(file, 5, 10, got)]).result(60).counts == [10]
        assert forebay.start_write_many([(copy, 0, 10, got)]).result(60).counts == [10]
    assert (tmp_path / "copy").read_bytes() == bytes_[5:15]


def test_nothing_has_ended_at_once(engine: forebay.Engine, data: Data) -> None:
    seen: list[object] = []
    transfer = engine.start_read_many([])
    transfer.add_done_callback(seen.append)
    assert transfer.done() and seen == [transfer] and len(transfer.result(0)) == 0
    assert transfer.progress() == (0, 0) and not transfer.cancel() and not transfer.cancelled()
    assert transfer.exception() is None and transfer.report()["bytes"] == 0

    async def wait() -> int:
        return len(await engine.start_write_many([]))

    assert asyncio.run(wait()) == 0
    with engine.open(data[0]) as file:
        assert engine.start_read_many([(file, 0, 0, 0)], device="cpu").result(60).counts == [0]


def test_each_request_has_its_own_end(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    target = bytearray(10)
    with engine.open(path) as file:
        requests = [(file, 0, 10, target), (file, len(bytes_) - 5, 10, target)]
        transfer = engine.start_read_many(requests)
        error = transfer.exception(60)
        assert isinstance(error, forebay.EndOfFile) and error.bytes == 5
        assert error.offset == len(bytes_) - 5 and error.filename == str(path)
        for _ in range(2):
            with pytest.raises(EOFError):
                transfer.result()
        patient = engine.start_read_many(requests, check=False)
        assert patient.exception(60) is None
        assert patient.result().counts == [10, None] and list(patient.result().errors) == [1]
        assert engine.start_read_many(requests, exact=False).result().counts == [10, 5]


def test_a_wait_that_is_too_short_leaves_the_transfer(
    data: Data, slow_gpu: forebay.Engine
) -> None:
    path, bytes_ = data

    def is_left(nbytes: int) -> bool:
        """Whether waits end before the transfer does, which says that it runs."""
        target = SimArray(slow_gpu.allocate(nbytes, "sim"))
        with slow_gpu.open(path) as file:
            transfer = slow_gpu.start_read_many(large(file, target, nbytes), device="sim")
            left = "in progress" in repr(transfer) and transfer.running()
            left = left and waits_in_vain(
                lambda: transfer.result(0.01), lambda: transfer.exception(0)
            )
            left = left and transfer.report()["seconds"]["elapsed"] is None
            assert transfer.result(60).counts == [nbytes // 2, nbytes // 2]
        assert target.tobytes() == bytes_[:nbytes]
        return left

    # A busy machine may stop a process for as long as a transfer takes.
    assert any(is_left(nbytes) for nbytes in (500_000, 1_500_000, 3_000_000))


def test_a_cancelled_transfer_says_so_and_gives_all_back(
    data: Data, slow_gpu: forebay.Engine
) -> None:
    path, _ = data
    target = SimArray(slow_gpu.allocate(3_000_000, "sim"))
    before = sys.getrefcount(target)
    with slow_gpu.open(path) as file:
        transfer = file.start_readv([(0, 3_000_000, target)])
        assert sys.getrefcount(target) > before
        assert transfer.cancel()
        for _ in range(2):
            with pytest.raises(forebay.Cancelled):
                transfer.result(60)
        assert isinstance(transfer.exception(), forebay.Cancelled)
        assert transfer.cancelled() and not transfer.cancel()
    assert sys.getrefcount(target) == before


def test_targets_are_kept_while_bytes_move(data: Data, slow_gpu: forebay.Engine) -> None:
    path, bytes_ = data
    targets = [SimArray(slow_gpu.allocate(100_000, "sim")) for _ in range(3)]
    before = [sys.getrefcount(target) for target in targets]
    with slow_gpu.open(path) as file:
        transfer = file.start_readv([(n, 100_000, target) for n, target in enumerate(targets)])
        assert all(sys.getrefcount(t) > b for t, b in zip(targets, before, strict=True))
        transfer.result(60)
    assert [sys.getrefcount(target) for target in targets] == before
    for n, target in enumerate(targets):
        assert target.tobytes() == bytes_[n : n + 100_000]


def test_a_transfer_without_a_reference_continues(engine: forebay.Engine, tmp_path: Path) -> None:
    path = tmp_path / "written"
    for number in range(10):
        with engine.open(path, "w") as file:
            file.start_writev([(0, 1_000_000, bytes([number]) * 1_000_000)])
        gc.collect()
        until = time.monotonic() + 60
        while path.read_bytes() != bytes([number]) * 1_000_000:
            assert time.monotonic() < until, "it was given up"
            time.sleep(0.001)


def test_a_closed_file_is_refused_and_a_file_closed_later_is_read(
    data: Data, slow_gpu: forebay.Engine
) -> None:
    path, bytes_ = data
    target = SimArray(slow_gpu.allocate(300_000, "sim"))

    def descriptors() -> int:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum(os.path.lexists(link) and os.readlink(link) == str(path) for link in links)

    file = slow_gpu.open(path)
    transfer = slow_gpu.start_read_many(large(file, target, 300_000), device="sim")
    file.close()
    assert transfer.result(60).bytes == 300_000
    assert target.tobytes() == bytes_[:300_000]
    until = time.monotonic() + 60
    while descriptors():
        assert time.monotonic() < until, "the future keeps the file"
        time.sleep(0.01)
    assert transfer.result().bytes == 300_000
    for call in [
        lambda: slow_gpu.start_read_many([(file, 0, 1, bytearray(1))]),
        lambda: slow_gpu.start_write_many([(file, 0, 1, b"a")]),
        lambda: slow_gpu.start_read_many(target=bytearray(COUNT * PIECE), **strewn(file)),
        lambda: file.start_readv([(0, 1, bytearray(1))]),
        lambda: file.start_writev([(0, 1, b"a")]),
    ]:
        with pytest.raises(ValueError, match="is closed"):
            call()


def test_freed_memory_is_refused(engine: forebay.Engine, data: Data) -> None:
    buffer = engine.allocate(100 << 20, "sim")
    address = buffer.address
    del buffer
    with engine.open(data[0]) as file, pytest.raises(forebay.Error, match="was freed"):
        engine.start_read_many([(file, 0, 100 << 20, address)], device="sim")


def test_callbacks_come_once_each_also_behind_one_that_fails(
    data: Data, slow_gpu: forebay.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = data
    target = SimArray(slow_gpu.allocate(200_000, "sim"))
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    seen: list[tuple[int, Any]] = []
    reported = threading.Event()

    def fails(_: object) -> None:
        raise RuntimeError("of the callback's own")

    with slow_gpu.open(path) as file:
        transfer = file.start_readv([(0, 200_000, target)])
        transfer.add_done_callback(fails)
        for number in range(3):
            transfer.add_done_callback(lambda t, number=number: seen.append((number, t)))
        transfer.add_done_callback(lambda _: reported.set())
        assert reported.wait(60)
        transfer.add_done_callback(fails)
        transfer.add_done_callback(lambda t: seen.append((3, t)))
    assert seen == [(number, transfer) for number in range(4)]
    assert transfer.result().bytes == 200_000
    assert len(lost) == 2 and "own" in str(lost[0].exc_value)


def test_an_await_that_ends_fails_or_is_cancelled(data: Data, slow_gpu: forebay.Engine) -> None:
    path, bytes_ = data
    targets = [SimArray(slow_gpu.allocate(50_000, "sim")) for _ in range(3)]

    async def all_of_them() -> forebay.ManyTransfer:
        with slow_gpu.open(path) as file:
            transfers = [file.start_readv([(n, 50_000, t)]) for n, t in enumerate(targets)]
            for transfer in transfers:
                assert (await transfer).counts == [50_000]
            with pytest.raises(forebay.EndOfFile):
                await file.start_readv([(len(bytes_), 100, bytearray(100))])
            slow = file.start_readv([(0, 3_000_000, slow_gpu.allocate(3_000_000, "sim"))])
            with pytest.raises(asyncio.TimeoutError):
                async with asyncio.timeout(0.05):
                    await slow
            return slow

    assert isinstance(asyncio.run(all_of_them()).exception(60), forebay.Cancelled)
    for n, target in enumerate(targets):
        assert target.tobytes() == bytes_[n : n + 50_000]


def test_many_threads_wait_for_one(data: Data, slow_gpu: forebay.Engine) -> None:
    target = SimArray(slow_gpu.allocate(200_000, "sim"))
    results: list[forebay.ManyResult] = []
    with slow_gpu.open(data[0]) as file:
        transfer = file.start_readv([(0, 200_000, target)])
        threads = [
            threading.Thread(target=lambda: results.append(transfer.result(60))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(results) == 8 and all(result is results[0] for result in results)
