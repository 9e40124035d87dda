"""What a monitor counts."""

from __future__ import annotations

import json
import os
import pickle
import threading
import time
from pathlib import Path

import forebay
import forebay.kvikio as kvikio
import pytest
from arrays import SimArray
from forebay.kvikio import statistics

Data = tuple[Path, bytes]


def test_nothing_is_counted_without_a_monitor(data: Data) -> None:
    with kvikio.CuFile(data[0]) as file:
        file.read(bytearray(10))
    assert statistics.operation("read", bytearray(10), None) is None
    with kvikio.SummaryMonitor() as monitor:
        assert statistics.operation("read", bytearray(10), None) is not None
        assert monitor.get().num_ops == 0
    assert statistics.operation("read", bytearray(10), None) is None


def test_every_kind_of_call_is_counted_once(data: Data, tmp_path: Path) -> None:
    path, bytes_ = data
    array = SimArray(forebay.default_engine().allocate(1000, "sim"))
    with kvikio.SummaryMonitor() as monitor, kvikio.CuFile(path) as file:
        file.read(bytearray(10))
        begun = file.pread(bytearray(20))
        assert begun.get() == begun.get() == 20
        file.raw_read(array, 30)
        file.raw_read_async(array, 0, 40).check_bytes_done()
        kvikio.Mmap(path).read(bytearray(50), 50)
        with kvikio.CuFile(tmp_path / "copy", "w") as copy:
            copy.write(bytes(60))
            copy.pwrite(array).get()
        with pytest.raises(RuntimeError):
            file.read(bytearray(5), None, len(bytes_))
        with pytest.raises(ValueError):
            file.pread(bytearray(7), 8)
        known = monitor.get()
    assert (known.num_ops, known.num_reads, known.num_writes, known.num_errors) == (9, 7, 2, 2)
    assert (known.bytes_read, known.bytes_written) == (150, 1060)
    assert known.bytes_transferred == 1210 and known.bytes_requested == 1210 + 5 + 8
    assert known.by_backend["POSIX"]["num_ops"] == 8
    assert known.by_backend["MMAP"] == {
        "num_ops": 1,
        "bytes_transferred": 50,
        "total_duration_ns": known.by_backend["MMAP"]["total_duration_ns"],
        "num_errors": 0,
    }
    assert 0 < known.busy_ns <= known.wall_ns and known.mean_duration_ns > 0


def test_a_future_without_a_waiter_is_counted(data: Data) -> None:
    with kvikio.SummaryMonitor() as monitor, kvikio.CuFile(data[0]) as file:
        file.pread(bytearray(2_000_000))
        until = time.monotonic() + 60
        while monitor.get().num_ops == 0 and time.monotonic() < until:
            time.sleep(0.001)
        assert monitor.get().bytes_read == 2_000_000


def test_calls_side_by_side_are_busy_once() -> None:
    with kvikio.SummaryMonitor() as monitor:
        begun = [statistics.operation("read", None, 10) for _ in range(3)]
        time.sleep(0.02)
        for operation in begun:
            assert operation is not None
            operation.end(10)
            operation.end(10)
        known = monitor.get()
    assert known.num_ops == 3 and known.bytes_read == 30
    assert 0.02e9 <= known.busy_ns <= known.wall_ns
    assert known.total_duration_ns >= 3 * 0.02e9


def test_a_stop_fixes_what_was_counted(data: Data) -> None:
    monitor = kvikio.SummaryMonitor()
    pending = statistics.operation("read", None, 10)
    monitor.stop()
    monitor.stop()
    first = monitor.get()
    assert pending is not None
    pending.end(10)
    with kvikio.CuFile(data[0]) as file:
        file.read(bytearray(10))
    assert monitor.get() == first and first.num_ops == 0


def test_calls_from_before_a_reset_are_not_counted() -> None:
    with kvikio.SummaryMonitor() as monitor:
        pending = statistics.operation("write", None, 10)
        monitor.reset()
        assert pending is not None
        pending.end(10)
        assert monitor.get().num_ops == 0 and monitor.get().busy_ns == 0


def test_differences_are_of_one_monitor_since_its_reset(data: Data) -> None:
    with kvikio.SummaryMonitor() as monitor, kvikio.CuFile(data[0]) as file:
        first = monitor.get()
        file.read(bytearray(10))
        second = monitor.get()
        file.read(bytearray(30))
        third = monitor.get()
        between = third.since(second)
        assert (between.num_ops, between.bytes_read) == (1, 30)
        assert between.by_backend["POSIX"]["bytes_transferred"] == 30
        assert between.start_unix_ns == second.end_unix_ns
        assert monitor.since(first).bytes_read == 40
        for wrong in (between, third, kvikio.SummaryMonitor().get()):
            with pytest.raises(ValueError, match="earlier"):
                second.since(wrong)
        with pytest.raises(ValueError, match="earlier"):
            between.since(first)
        monitor.reset()
        with pytest.raises(ValueError, match="earlier"):
            monitor.since(third)


def test_a_summary_is_sent_and_printed(data: Data) -> None:
    with kvikio.SummaryMonitor() as monitor, kvikio.CuFile(data[0]) as file:
        first = monitor.get()
        file.read(bytearray(10))
        known = monitor.get()
    again = pickle.loads(pickle.dumps(known))
    assert again == known == kvikio.Summary.deserialize(known.serialize())
    assert hash(again) == hash(known) and again.since(first).num_ops == 1
    with pytest.raises(ValueError, match="not a summary"):
        kvikio.Summary.deserialize(b"{}")
    assert json.loads(known.to_json())["bytes_read"] == 10
    assert "operations           1 (1 read, 0 written)" in str(known)
    assert "GDS" not in known.report() and "backend GDS" in known.report(all_rows=True)


def test_monitors_of_many_threads_lose_nothing(data: Data) -> None:
    with kvikio.SummaryMonitor() as monitor, kvikio.CuFile(data[0]) as file:

        def work() -> None:
            for _ in range(50):
                file.pread(bytearray(10)).get()

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        known = monitor.get()
    assert (known.num_ops, known.bytes_read, known.num_errors) == (400, 4000, 0)


def test_a_forked_child_counts_its_own_calls(data: Data) -> None:
    with kvikio.SummaryMonitor() as monitor, kvikio.CuFile(data[0]) as file:
        file.read(bytearray(10))
        before = monitor.get()
        with statistics._lock, monitor._lock:  # as another thread may at the time of a fork
            child = os.fork()
            if child == 0:
                summary = monitor.get()
                is_new = summary.num_ops == 0 and summary.span != before.span
                os._exit(0 if is_new else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert monitor.get().num_ops == 1
        assert monitor.get().span == before.span
