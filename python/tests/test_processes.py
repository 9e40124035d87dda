"""What a process does to transfers: forks, ends, is interrupted, has many threads."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import textwrap
import threading
import time
from pathlib import Path

import forebay
import pytest
from conftest import content, program

Data = tuple[Path, bytes]


def run(script: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """A Python of its own with `script`, which must end by itself."""
    code = "import forebay, os, sys, time\n" + textwrap.dedent(script)
    return program(code, *arguments, ends=None, timeout=100)


def test_a_forked_child_has_an_engine_of_its_own(data: Data) -> None:
    path, _ = data
    done = run(
        """
        path = sys.argv[1]
        expected = open(path, "rb").read()
        file = forebay.open(path)
        slow = forebay.Engine(); slow.gpu("sim:bandwidth=1MB/s")
        target = slow.allocate(500_000, "sim")
        moving = slow.open(path).start_read_into(target)
        many = slow.open(path).start_readv([(0, 300_000, slow.allocate(300_000, "sim"))])
        child = os.fork()
        if child == 0:
            got = bytearray(len(expected))
            with forebay.open(path) as own:
                assert own.read_into(got) == len(expected) and got == expected
            calls = [lambda: file.read_into(got), lambda: slow.open(path)]
            calls += [moving.result, many.result]
            assert many.done() and moving.done()
            for call in calls:
                try:
                    call()
                except forebay.Forked as error:
                    assert "forked" in str(error)
                else:
                    os._exit(5)
            assert forebay.read(path, None).tobytes() == expected
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        assert moving.result(60) == 500_000 and many.result(60).bytes == 300_000
        assert target.tobytes() == expected[:500_000]
        sys.exit(os.waitstatus_to_exitcode(status))
        """,
        str(path),
    )
    assert done.returncode == 0, done.stderr


def test_a_forked_child_cannot_query_a_length(data: Data) -> None:
    done = run(
        """
        from forebay.stream import LayerStream
        file = forebay.open(sys.argv[1])
        layers = [[(file, n * 500_000, 500_000)] for n in range(5)]
        streams = [LayerStream(layers, "sim", order=order) for order in ("forward", "appended")]
        assert len(streams[0]) == 5
        child = os.fork()
        if child == 0:
            for stream in streams:
                try:
                    len(stream)
                except forebay.Forked as error:
                    assert "forked" in str(error)
                else:
                    os._exit(5)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        for stream in streams:
            stream.close()
        sys.exit(os.waitstatus_to_exitcode(status))
        """,
        str(data[0]),
    )
    assert done.returncode == 0, done.stderr


def _length(path: str) -> int:
    return forebay.read(path, None).nbytes


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_multiprocessing(data: Data, method: str) -> None:
    path, bytes_ = data
    forebay.read(path, None)
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(_length, [str(path)] * 4) == [len(bytes_)] * 4


@pytest.mark.parametrize("how", ["end", "sys.exit(0)", "os._exit(0)"])
def test_a_process_ends_with_transfers_in_flight(data: Data, how: str) -> None:
    start = time.monotonic()
    done = run(
        f"""
        engine = forebay.Engine()
        engine.gpu("sim:bandwidth=1MB/s")
        file = engine.open(sys.argv[1])
        transfers = [file.start_read_into(engine.allocate(3_000_000, "sim")) for _ in range(5)]
        transfers.append(file.start_readv([(0, 3_000_000, engine.allocate(3_000_000, "sim"))]))
        target = engine.allocate(3_000_000, "sim")
        transfers.append(file.start_readv([(0, 3_000_000, target)], stream=0))
        transfers[0].add_done_callback(print)
        transfers[-1].add_done_callback(print)
        transfers[1].add_done_callback(lambda _: time.sleep(1))
        {"pass" if how == "end" else how}
        """,
        str(data[0]),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert time.monotonic() - start < 30


@pytest.mark.parametrize("what", ["time.sleep(0.001)", "pass"])
def test_a_process_ends_while_a_callback_runs(data: Data, what: str) -> None:
    done = run(
        f"""
        import threading
        began = threading.Event()
        def on(_):
            began.set()
            # It runs here if the transfer ended before it was added, on a busy machine.
            while threading.current_thread() is not threading.main_thread():
                {what}
        engine = forebay.Engine()
        engine.gpu("sim:bandwidth=1MB/s")
        moving = engine.open(sys.argv[1]).start_read_into(engine.allocate(100_000, "sim"))
        moving.add_done_callback(on)
        assert began.wait(60)
        """,
        str(data[0]),
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_ends_while_threads_wait(data: Data) -> None:
    done = run(
        """
        import threading
        engine = forebay.Engine()
        engine.gpu("sim:bandwidth=1MB/s")
        file = engine.open(sys.argv[1])
        target = engine.allocate(1_000_000, "sim")
        def again(call):
            while True:
                call()
        calls = [
            lambda: file.read_into(target),
            lambda: file.start_read_into(target).result(),
            lambda: engine.read_many([(file, 0, 1_000_000, target)]),
            lambda: file.read_into(bytearray(100)),
        ]
        for call in calls * 8:
            threading.Thread(target=again, args=(call,), daemon=True).start()
        time.sleep(0.3)
        """,
        str(data[0]),
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_during_a_log_line_leaves_the_child_free(data: Data) -> None:
    # Threads that log something all the time are caught in the middle of it again and again.
    done = run(
        """
        import logging, signal, threading
        logger = logging.getLogger("forebay")
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(logging.NullHandler())
        file = forebay.open(sys.argv[1])
        def log():
            target = bytearray(200_000)
            while True:
                file.read_into(target)
        for _ in range(3):
            threading.Thread(target=log, daemon=True).start()
        for number in range(300):
            child = os.fork()
            if child == 0:
                forebay.Engine()
                os._exit(0)
            until, ended = time.monotonic() + 30, 0
            while not ended and time.monotonic() < until:
                ended, _ = os.waitpid(child, os.WNOHANG)
                time.sleep(0.001)
            if not ended:
                os.kill(child, signal.SIGKILL)
                sys.exit(f"child {number} hangs")
        """,
        str(data[0]),
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", ["read_into", "result", "read_many", "many result", "ordered"])
def test_an_interrupt_ends_a_wait(data: Data, call: str) -> None:
    # A busy machine may be late by as much as a transfer takes.
    assert any(is_interrupted(data[0], call, seconds) for seconds in (3, 60))


def is_interrupted(path: Path, call: str, seconds: int) -> bool:
    """Whether a call ends before the transfer of so many seconds would."""
    done = run(
        """
        import signal, threading
        engine = forebay.Engine()
        engine.gpu("sim:bandwidth=1MB/s")
        nbytes = 1_000_000 * int(sys.argv[3])
        os.truncate(sys.argv[1], nbytes)
        file = engine.open(sys.argv[1])
        target = engine.allocate(nbytes, "sim")
        whole = [(file, 0, nbytes, target)]
        calls = {
            "read_into": lambda: file.read_into(target),
            "result": lambda: file.start_read_into(target).result(),
            "read_many": lambda: engine.read_many(whole),
            "ordered": lambda: engine.read_many(whole, stream=0),
            "many result": lambda: engine.start_read_many(whole).result(),
        }
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        start = time.monotonic()
        try:
            calls[sys.argv[2]]()
        except KeyboardInterrupt:
            print("interrupted after", time.monotonic() - start)
        got = bytearray(1000)
        assert file.read_into(got) == 1000
        """,
        str(path),
        call,
        str(seconds),
    )
    assert done.returncode == 0, done.stderr
    words = done.stdout.split()
    return words[:2] == ["interrupted", "after"] and float(words[2]) < 0.8 * seconds


@pytest.mark.parametrize("call", ["result", "exception"])
def test_an_interrupted_wait_cancels_its_transfer(data: Data, call: str) -> None:
    script = """
        import signal, threading
        engine = forebay.Engine()
        engine.gpu("sim:bandwidth=1MB/s")
        nbytes = 1_000_000 * int(sys.argv[3])
        os.truncate(sys.argv[1], nbytes)
        moving = engine.open(sys.argv[1]).start_read_into(engine.allocate(nbytes, "sim"))
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            getattr(moving, sys.argv[2])(60)
        except KeyboardInterrupt:
            print("interrupted", isinstance(moving.exception(60), forebay.Cancelled))
        """
    # A busy machine may be late by as much as a transfer takes.
    done = [run(script, str(data[0]), call, "3")]
    if done[0].stdout != "interrupted True\n":
        done.append(run(script, str(data[0]), call, "60"))
    assert done[-1].stdout == "interrupted True\n", done


def test_a_handler_that_raises_nothing_lets_the_call_continue(data: Data) -> None:
    done = run(
        """
        import signal, threading
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
        engine = forebay.Engine()
        engine.gpu("sim:bandwidth=1MB/s")
        file = engine.open(sys.argv[1])
        # A busy machine may be late with the signal, or with what follows it.
        for nbytes in 400_000, 1_500_000, 3_000_000:
            seen.clear()
            target = engine.allocate(nbytes, "sim")
            timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGUSR1))
            timer.start()
            assert file.read_into(target) == nbytes
            end = time.monotonic()
            timer.join()
            assert len(seen) == 1
            if seen[0] < end - 0.1:
                sys.exit(0)
        sys.exit("the handler never ran while the call did")
        """,
        str(data[0]),
    )
    assert done.returncode == 0, done.stderr


def test_a_subinterpreter_gets_an_import_error() -> None:
    inner = """
try:
    import forebay
except ImportError as error:
    print("refused:", error, flush=True)
"""
    done = run(
        f"""
        import _xxsubinterpreters as interpreters
        interpreters.run_string(interpreters.create(), {inner!r})
        """
    )
    if "No module named '_xxsubinterpreters'" in done.stderr:
        pytest.skip("no subinterpreters in this Python")
    assert "refused:" in done.stdout and "subinterpreters" in done.stdout, done


def test_threads_share_an_engine(engine: forebay.Engine, tmp_path: Path) -> None:
    bytes_ = content(1 << 20)
    path = tmp_path / "shared"
    path.write_bytes(bytes_)
    failed: list[object] = []

    def work(seed: int) -> None:
        try:
            with engine.open(path) as file:
                for step in range(60):
                    offset = (seed * 7919 + step * 104_729) % (len(bytes_) - 70_000)
                    len_ = [1, 100, 4096, 65_537][step % 4]
                    got = bytearray(len_)
                    if step % 3:
                        file.read_into(got, offset)
                    else:
                        file.start_read_into(got, offset).result(60)
                    if got != bytes_[offset : offset + len_]:
                        failed.append((seed, step))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_engines_come_and_go_without_a_trace(data: Data) -> None:
    path, bytes_ = data

    def once() -> None:
        engine = forebay.Engine()
        target = engine.allocate(100_000, "sim")
        with engine.open(path) as file:
            file.read_into(target)
            file.start_read_into(bytearray(100_000)).result(60)
        assert target.tobytes() == bytes_[:100_000]

    def left() -> tuple[int, int]:
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    once()
    time.sleep(0.2)
    before = left()
    for _ in range(30):
        once()
    until = time.monotonic() + 20
    while left() > before and time.monotonic() < until:
        time.sleep(0.05)
    assert left() <= before


def test_transfers_leave_no_memory_behind(engine: forebay.Engine, data: Data) -> None:
    count = int(os.environ.get("FOREBAY_TRANSFERS", "20000"))

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    target, on_gpu = bytearray(4096), engine.allocate(4096, "sim")
    with engine.open(data[0]) as file:

        def work(count: int) -> None:
            for number in range(count):
                file.read_into(target, number)
                if number % 10 == 0:
                    file.start_read_into(target, number).result(60)
                    file.read_into(on_gpu, number)
                if number % 100 == 0:
                    file.readv([(0, 10, target), (20, 10, target)])
                    file.start_readv([(0, 10, target), (20, 10, target)]).result(60)

        work(max(2000, count // 2))
        before = resident()
        work(count)
        grown = resident() - before
    assert grown < 4 << 20, f"{grown} bytes more after {count} transfers"


def test_a_signal_in_another_threads_wait_is_the_main_threads(data: Data) -> None:
    assert threading.current_thread() is threading.main_thread()
    seen: list[int] = []
    old = signal.signal(signal.SIGUSR2, lambda number, _: seen.append(number))
    try:
        engine = forebay.Engine()
        engine.gpu("sim:bandwidth=1MB/s")
        target = engine.allocate(300_000, "sim")
        with engine.open(data[0]) as file:
            thread = threading.Thread(target=lambda: file.read_into(target))
            thread.start()
            os.kill(os.getpid(), signal.SIGUSR2)
            thread.join()
    finally:
        signal.signal(signal.SIGUSR2, old)
    assert seen == [signal.SIGUSR2]
