"""Many threads on one engine, one file, one transfer. With a GIL it is handed on as often as can
be; a Python without one runs them at once."""

from __future__ import annotations

import array
import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import forebay
import pytest
from conftest import program

Data = tuple[Path, bytes]

THREADS = 8


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Threads take turns all the time."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def together(work: Callable[[int], object]) -> list[object]:
    """Runs `work` in threads that begin at once, and returns what it returned in each."""
    line = threading.Barrier(THREADS)
    ends: list[object] = [None] * THREADS

    def run(number: int) -> None:
        line.wait()
        try:
            ends[number] = work(number)
        except BaseException as error:
            ends[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    failed = [end for end in ends if isinstance(end, BaseException)]
    if failed:
        raise failed[0]
    return ends


def test_an_import_leaves_a_python_without_a_gil_without_it() -> None:
    if getattr(sys, "_is_gil_enabled", lambda: True)():
        pytest.skip("this Python has a GIL")
    code = "import sys, forebay, forebay.kvikio; print(sys._is_gil_enabled())"
    assert program(code, flags=["-W", "error"]).stdout.strip() == "False"


SLOW = {
    "a path's function": "engine.open(Slow())",
    "an import": "engine.statistics()",
}


@pytest.mark.parametrize("kind", SLOW)
def test_a_program_ends_while_a_thread_is_in_python_below_a_call(kind: str) -> None:
    """The thread wakes while the interpreter ends, with frames of ours below those of Python."""
    code = f"""
import sys, threading, time, types
import forebay

class Slow:  # until the interpreter is ending
    def __fspath__(self):
        began.set()
        time.sleep(0.3)
        return "/"

    def find_spec(self, name, *_):
        if name == "forebay._statistics":
            self.__fspath__()

class Last:  # the interpreter ends slowly
    def __del__(self, sleep=time.sleep):
        sleep(0.8)

began, engine = threading.Event(), forebay.Engine()
sys.modules["last"] = types.ModuleType("last")
sys.modules["last"].object = Last()
sys.modules.pop("forebay._statistics", None)
sys.meta_path.insert(0, Slow())
threading.Thread(target=lambda: {SLOW[kind]}, daemon=True).start()
began.wait()
"""
    program(code, timeout=60)


def test_the_default_engine_is_one() -> None:
    code = """
import threading, forebay
line, seen = threading.Barrier(16), []
def call():
    line.wait()
    seen.append(forebay.default_engine())
threads = [threading.Thread(target=call) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(seen), len({id(engine) for engine in seen}))
"""
    assert program(code).stdout.split() == ["16", "1"]


def test_one_file_is_read_in_every_way_at_once(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    with engine.open(path) as file:

        def work(number: int) -> None:
            for step in range(60):
                offset, len_ = (number * 7919 + step * 104_729) % 2_800_000, 1 + step * 3000
                got = bytearray(len_)
                if step % 3 == 0:
                    file.read_into(got, offset)
                elif step % 3 == 1:
                    file.start_read_into(got, offset).result(60)
                else:
                    half = len_ // 2
                    views = memoryview(got)[:half], memoryview(got)[half:]
                    requests = [(offset, half, views[0])]
                    requests.append((offset + half, len_ - half, views[1]))
                    assert file.readv(requests).bytes == len_
                assert got == bytes_[offset : offset + len_], (number, step)

        together(work)


def test_one_file_is_written_and_read_at_once(engine: forebay.Engine, tmp_path: Path) -> None:
    size = 50_000
    with engine.open(tmp_path / "shared", "w") as file:

        def work(number: int) -> None:
            for step in range(20):
                mine = bytes([number + 1, step]) * (size // 2)
                assert file.write_from(mine, number * size) == size
                got = bytearray(size)
                file.read_into(got, number * size)
                assert got == mine, (number, step)

        together(work)
        assert file.size == THREADS * size


def test_one_transfer_reports_as_well(data: Data, slow_gpu: forebay.Engine) -> None:
    path, bytes_ = data
    called: list[object] = []
    with slow_gpu.open(path) as file:
        target = slow_gpu.allocate(400_000, "sim")
        transfer = file.start_read_into(target)

        def work(number: int) -> object:
            while not transfer.done():
                transfer.add_done_callback(lambda reported: called.append((number, reported)))
                assert transfer.progress()[1] == 400_000
                assert transfer.report()["bytes"] <= 400_000 and repr(transfer)
                expected.append(number)
                time.sleep(0.01)
            return transfer.result(60), transfer.exception(60), transfer.cancelled()

        expected: list[int] = []
        assert together(work) == [(400_000, None, False)] * THREADS
    assert target.tobytes() == bytes_[:400_000]
    until = time.monotonic() + 20
    while len(called) < len(expected) and time.monotonic() < until:
        time.sleep(0.01)
    assert sorted(number for number, _ in called) == sorted(expected)  # type: ignore[misc]
    assert all(reported is transfer for _, reported in called)  # type: ignore[misc]


def test_one_transfer_is_cancelled_by_many(data: Data, slow_gpu: forebay.Engine) -> None:
    path, _ = data
    with slow_gpu.open(path) as file:
        transfer = file.start_read_into(slow_gpu.allocate(3_000_000, "sim"))

        def work(number: int) -> object:
            if number % 2:
                transfer.cancel()
            with pytest.raises(forebay.Cancelled):
                transfer.result(60)
            return transfer.cancelled() and not transfer.cancel()

        assert together(work) == [True] * THREADS


def test_a_file_is_closed_while_others_read_it(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    for _ in range(20):
        file = engine.open(path)

        def work(number: int, file: forebay.File = file) -> object:
            got, read = bytearray(70_000), 0
            while True:
                offset = (number * 7919 + read * 104_729) % 2_900_000
                try:
                    if read % 2:
                        file.read_into(got, offset)
                    else:
                        file.start_read_into(got, offset).result(60)
                except ValueError as error:
                    assert "closed" in str(error)
                    return read
                assert got == bytes_[offset : offset + len(got)]
                read += 1
                if number == 0 or read > 1000:
                    file.close()

        together(work)
        assert file.closed


def test_engines_come_and_go_in_many_threads(data: Data) -> None:
    path, bytes_ = data

    def work(number: int) -> None:
        for _ in range(5):
            engine = forebay.Engine(readers=2)
            target = engine.allocate(100_000, "sim")
            with engine.open(path) as file:
                file.read_into(target, number)
            assert target.tobytes() == bytes_[number : number + 100_000]

    together(work)


def test_results_without_a_waiter_are_released(engine: forebay.Engine, data: Data) -> None:
    class Target(bytearray):
        """One that can be watched."""

    watched: list[weakref.ref[Target]] = []
    with engine.open(data[0]) as file:

        def work(number: int) -> None:
            for step in range(50):
                target = Target(100_000)
                watched.append(weakref.ref(target))
                file.start_read_into(target, number * step)

        together(work)
        # Threads of the engine may be the last to have them; they are freed when a call comes by.
        until = time.monotonic() + 20
        while any(target() is not None for target in watched) and time.monotonic() < until:
            file.read_into(bytearray(1))
            gc.collect()
    assert len(watched) == THREADS * 50
    assert all(target() is None for target in watched)


def test_numbers_that_change_under_a_call_do_no_harm(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    count, far = 200, 1 << 62
    offsets = array.array("Q", range(count))
    lengths, at = array.array("Q", [100] * count), array.array("Q", range(0, 100 * count, 100))
    with engine.open(path) as file:

        def work(number: int) -> None:
            for step in range(100):
                if number % 2:
                    offsets[step] = far
                    offsets[step] = step
                    continue
                got = bytearray(100 * count)
                done = engine.read_many(
                    files=file, offsets=offsets, lengths=lengths, target=got, at=at, check=False
                )
                # Each was read whole from where it was to be, or lay behind the file's end.
                for index, bytes_read in enumerate(done.counts):
                    piece = got[index * 100 : index * 100 + 100]
                    assert piece == (bytes_[index : index + 100] if bytes_read else bytes(100))

        together(work)
