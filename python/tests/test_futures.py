"""Transfers that do not block: waited for, called back, awaited, cancelled, left alone."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import pytest
from arrays import SimArray
from conftest import waits_in_vain

Data = tuple[Path, bytes]


def test_a_result_is_the_number_of_bytes(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    got = bytearray(len(bytes_))
    with engine.open(path) as file:
        transfer = file.start_read_into(got)
        assert transfer.result() == transfer.result(5) == len(bytes_)
    assert got == bytes_ and transfer.done() and not transfer.running()
    assert transfer.exception() is None and not transfer.cancelled()
    assert transfer.progress() == (len(bytes_), len(bytes_))


def test_a_report_names_the_way(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    with engine.open(path) as file:
        transfer = file.start_read_into(bytearray(len(bytes_)))
        transfer.result()
    report = transfer.report()
    assert report["bytes"] == len(bytes_)
    assert sum(share["bytes"] for share in report["routes"]) == len(bytes_)
    assert all(share["route"] == "host" and share["reason"] for share in report["routes"])
    assert report["seconds"]["elapsed"] > 0
    assert report["not_direct"] is None


def test_a_report_says_why_bytes_did_not_go_straight(data: Data) -> None:
    path, bytes_ = data
    for gpu, part in [("sim", None), ("sim:cufile", "pieces of one call")]:
        engine = forebay.Engine()
        engine.gpu(gpu)
        target = SimArray(engine.allocate(len(bytes_), "sim"))
        with engine.open(path) as file:
            many = file.start_readv([(0, 100, target)])
            reports = [many.report(), many.result().report(), many.report()]
            single = file.start_read_into(target)
            single.result()
        for why in [report["not_direct"] for report in reports]:
            assert why is None if part is None else part in why
        assert (single.report()["not_direct"] is None) is (part is None)


def test_a_wait_that_is_too_short_leaves_the_transfer(
    data: Data, slow_gpu: forebay.Engine
) -> None:
    path, _ = data

    def is_left(nbytes: int) -> bool:
        """Whether waits end before the transfer does."""
        target = SimArray(slow_gpu.allocate(nbytes, "sim"))
        with slow_gpu.open(path) as file:
            transfer = file.start_read_into(target)
            in_vain = waits_in_vain(lambda: transfer.result(0.01), lambda: transfer.exception(0))
            left = in_vain and not transfer.done()
            assert transfer.result(60) == nbytes
        return left

    # A busy machine may stop a process for as long as a transfer takes.
    assert any(is_left(nbytes) for nbytes in (500_000, 1_500_000, 3_000_000))


def test_an_error_is_kept(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    with engine.open(path) as file:
        transfer = file.start_read_into(bytearray(10), len(bytes_) - 5)
        error = transfer.exception(60)
        assert isinstance(error, forebay.EndOfFile) and error.bytes == 5
        with pytest.raises(EOFError):
            transfer.result()


def test_a_cancelled_transfer_says_so(data: Data, slow_gpu: forebay.Engine) -> None:
    path, _ = data
    target = SimArray(slow_gpu.allocate(3_000_000, "sim"))
    with slow_gpu.open(path) as file:
        transfer = file.start_read_into(target)
        assert transfer.cancel()
        with pytest.raises(forebay.Cancelled):
            transfer.result(60)
        assert transfer.cancelled() and not transfer.cancel()


def test_callbacks_come_once_each(data: Data, slow_gpu: forebay.Engine) -> None:
    path, _ = data
    target = SimArray(slow_gpu.allocate(200_000, "sim"))
    seen: list[tuple[int, Any]] = []
    reported = threading.Event()
    with slow_gpu.open(path) as file:
        transfer = file.start_read_into(target)
        for number in range(3):
            transfer.add_done_callback(lambda t, number=number: seen.append((number, t)))
        transfer.add_done_callback(lambda _: reported.set())
        assert reported.wait(60)
        transfer.add_done_callback(lambda t: seen.append((3, t)))
    assert seen == [(number, transfer) for number in range(4)]


def test_a_callback_that_has_run_is_released(data: Data, slow_gpu: forebay.Engine) -> None:
    path, _ = data
    target = slow_gpu.allocate(200_000, "sim")
    reported = threading.Event()

    class Kept:
        """What a callback holds."""

        def note(self, _: forebay.Transfer) -> None:
            reported.set()

    kept = Kept()
    seen = [weakref.ref(kept), weakref.ref(target)]
    with slow_gpu.open(path) as file:
        file.start_read_into(target).add_done_callback(kept.note)
        del kept, target
        assert reported.wait(60)
        # Nothing of the package is called here that could let go of it on the way.
        until = time.monotonic() + 20
        while any(ref() is not None for ref in seen) and time.monotonic() < until:
            time.sleep(0.01)
        assert [ref() for ref in seen] == [None, None]


def test_an_exception_in_a_callback_hurts_no_other(
    engine: forebay.Engine, data: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = data
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    reported = threading.Event()

    def fails(_: forebay.Transfer) -> None:
        raise RuntimeError("of the callback's own")

    with engine.open(path) as file:
        for _ in range(2):
            transfer = file.start_read_into(bytearray(1_000_000))
            transfer.add_done_callback(fails)
            transfer.add_done_callback(lambda _: reported.set())
            assert reported.wait(60)
            assert transfer.result() == 1_000_000
            reported.clear()
    assert len(lost) == 2 and "own" in str(lost[0].exc_value)


def test_transfers_are_awaited(data: Data, slow_gpu: forebay.Engine) -> None:
    path, bytes_ = data
    targets = [SimArray(slow_gpu.allocate(50_000, "sim")) for _ in range(5)]

    async def all_of_them() -> list[int]:
        with slow_gpu.open(path) as file:
            reads = [file.start_read_into(t, 10 * n) for n, t in enumerate(targets)]

            async def one(transfer: forebay.Transfer) -> int:
                return await transfer

            return await asyncio.gather(*(one(read) for read in reads))

    assert asyncio.run(all_of_them()) == [50_000] * 5
    for number, target in enumerate(targets):
        assert target.tobytes() == bytes_[10 * number : 10 * number + 50_000]


def test_awaits_of_ended_transfers_let_other_tasks_run(
    data: Data, engine: forebay.Engine
) -> None:
    path, bytes_ = data
    path.read_bytes()  # into the page cache

    async def both() -> int:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(other())
        target = bytearray(1000)
        with engine.open(path) as file:
            for number in range(320):
                assert await file.start_read_into(target, number) == 1000
                assert target == bytes_[number : number + 1000]
        task.cancel()
        return turns

    assert asyncio.run(both()) >= 10


def test_many_awaits_end_in_several_loops_at_once(data: Data, slow_gpu: forebay.Engine) -> None:
    path, _ = data

    async def many() -> list[int]:
        with slow_gpu.open(path) as file:
            targets = [slow_gpu.allocate(100, "sim") for _ in range(200)]
            return await asyncio.gather(
                *(one(file.start_read_into(target)) for target in targets)
            )

    async def one(transfer: forebay.Transfer) -> int:
        return await transfer

    results: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: results.append(asyncio.run(many()))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [[100] * 200] * 4


def test_an_await_that_fails_or_is_cancelled(data: Data, slow_gpu: forebay.Engine) -> None:
    path, bytes_ = data

    async def both() -> forebay.Transfer:
        with slow_gpu.open(path) as file:
            with pytest.raises(forebay.EndOfFile):
                await file.start_read_into(bytearray(100), len(bytes_))
            slow = file.start_read_into(SimArray(slow_gpu.allocate(400_000, "sim")))
            with pytest.raises(asyncio.TimeoutError):
                async with asyncio.timeout(0.05):
                    await slow
            assert slow.done(), "the target may be used for something else"
            return slow

    assert isinstance(asyncio.run(both()).exception(60), forebay.Cancelled)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_closed_loop_is_released_although_its_transfer_ends_later(
    data: Data, slow_gpu: forebay.Engine
) -> None:
    async def one(transfer: forebay.Transfer) -> int:
        return await transfer

    with slow_gpu.open(data[0]) as file:
        transfer = file.start_read_into(slow_gpu.allocate(300_000, "sim"))
        loop = asyncio.new_event_loop()
        task = loop.create_task(one(transfer))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        seen = weakref.ref(loop)
        del loop, task
        assert transfer.result(60) == 300_000
        # The thread that ended the transfer leaves the future to the next call.
        until = time.monotonic() + 20
        while seen() is not None and time.monotonic() < until:
            assert file.size
            gc.collect()
    assert seen() is None


def test_the_target_is_free_once_the_transfer_is_done(data: Data, engine: forebay.Engine) -> None:
    path, bytes_ = data
    target = bytearray(len(bytes_))
    with engine.open(path) as file:
        transfer = file.start_read_into(target)
        while not transfer.done():
            time.sleep(0.001)
    target.clear()  # a BufferError while it is lent


def test_a_callback_must_be_callable(data: Data, engine: forebay.Engine) -> None:
    with engine.open(data[0]) as file:
        transfer = file.start_read_into(bytearray(100))
        with pytest.raises(TypeError, match="callback"):
            transfer.add_done_callback(5)  # type: ignore[arg-type]
        transfer.result()


def test_a_transfer_without_a_reference_continues(engine: forebay.Engine, tmp_path: Path) -> None:
    path = tmp_path / "written"
    for number in range(20):
        with engine.open(path, "w") as file:
            file.start_write_from(bytes([number]) * 2_000_000)
        gc.collect()
        until = time.monotonic() + 60
        while path.read_bytes() != bytes([number]) * 2_000_000:
            assert time.monotonic() < until, "it was given up"
            time.sleep(0.001)


def test_many_threads_wait_for_one(data: Data, slow_gpu: forebay.Engine) -> None:
    path, _ = data
    target = SimArray(slow_gpu.allocate(200_000, "sim"))
    results: list[int] = []
    with slow_gpu.open(path) as file:
        transfer = file.start_read_into(target)
        threads = [
            threading.Thread(target=lambda: results.append(transfer.result(60))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [200_000] * 8


def steps_concurrently(work: Callable[[], object]) -> int:
    """How often this thread comes to its turn while another one does this."""
    steps, done = 0, threading.Event()

    def run() -> None:
        work()
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not done.is_set():
        steps += 1
        time.sleep(0.001)
    thread.join()
    return steps


def test_other_threads_run_while_an_engine_ends(data: Data) -> None:
    def steps(nbytes: int) -> int:
        engine = forebay.Engine()
        engine.gpu("sim:bandwidth=1MB/s")
        with engine.open(data[0]) as file:
            file.start_read_into(engine.allocate(nbytes, "sim"))
        last = [engine]
        del engine, file
        return steps_concurrently(last.clear)  # which waits for what is in flight

    # Of some hundred steps a busy machine may take most, but not each time.
    assert any(steps(nbytes) > 10 for nbytes in (600_000, 3_000_000)), "the interpreter was held"


def test_other_threads_run_while_one_waits(data: Data, slow_gpu: forebay.Engine) -> None:
    path, _ = data
    targets = [SimArray(slow_gpu.allocate(nbytes, "sim")) for nbytes in (400_000, 3_000_000)]
    with slow_gpu.open(path) as file:
        steps = (steps_concurrently(lambda target=target: file.read_into(target)) for target in targets)
        assert any(count > 10 for count in steps), "the interpreter was held"
