"""`Engine.quiesce`: what it ends, and calls after it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import forebay
import pytest

SIZE = 8 << 20


def rings() -> list[Path]:
    files = Path("/proc/self/fd").iterdir()
    return [file for file in files if file.is_symlink() and "io_uring" in os.readlink(file)]


def threads() -> list[str]:
    tasks = Path("/proc/self/task").iterdir()
    return [name for task in tasks if (name := comm(task)).startswith("forebay-")]


def comm(task: Path) -> str:
    try:
        return (task / "comm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def has_ended() -> bool:
    """Whether no engine of this process has a ring or a thread."""
    end = time.monotonic() + 60  # only distinguishes late from never
    while threads() and time.monotonic() < end:  # the kernel removes an ended thread a bit later
        time.sleep(0.001)
    return not threads() and not rings()


@pytest.fixture
def engine() -> Iterator[forebay.Engine]:
    if threads() or rings():
        pytest.skip("other engines run in this process")
    yield forebay.Engine()


@pytest.fixture
def file(engine: forebay.Engine, tmp_path: Path) -> Iterator[forebay.File]:
    (tmp_path / "data").write_bytes(os.urandom(SIZE))
    with engine.open(tmp_path / "data", "r+") as file:
        file.sync()
        yield file


def check(file: forebay.File) -> None:
    """Reads with rings, threads and pinned memory."""
    expected = Path(file.name).read_bytes()
    for size in (4096, SIZE):
        for is_cold in (True, False):
            if is_cold:
                file.evict()
            on_gpu = file.engine.allocate(size, "sim")
            host = bytearray(size)
            for target in (on_gpu, host):
                assert file.read_into(target, SIZE - size) == size
            assert on_gpu.tobytes() == host == expected[SIZE - size :]


def test_nothing_is_left_and_the_next_call_resumes(file: forebay.File) -> None:
    engine = file.engine
    for _ in range(2):
        check(file)
        assert rings() and threads() and engine.statistics().pinned > 0
        engine.quiesce()
        assert has_ended()
        assert engine.statistics().pinned == 0
        assert not file.closed and file.size == SIZE and has_ended()
    file.write_from(b"new")
    assert Path(file.name).read_bytes()[:3] == b"new"
    engine.quiesce()
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        file.size


def test_memory_of_the_caller_stays(file: forebay.File) -> None:
    engine = file.engine
    gpu, pinned = engine.allocate(SIZE, "sim"), engine.allocate(SIZE)
    file.read_into(gpu)
    file.read_into(pinned)
    engine.quiesce()
    assert gpu.tobytes() == pinned.tobytes() == Path(file.name).read_bytes()
    file.read_into(pinned)
    engine.quiesce()
    assert has_ended()


def test_it_waits_for_transfers(file: forebay.File) -> None:
    engine = file.engine
    assert engine.gpu("sim:bandwidth=20MB/s") is not None
    transfer = file.start_read_into(target := engine.allocate(SIZE, "sim"))
    with pytest.raises(TimeoutError, match="in use"):
        engine.quiesce(0.01)
    done = threading.Thread(target=transfer.result)
    done.start()
    del transfer
    engine.quiesce()
    done.join()
    assert target.tobytes() == Path(file.name).read_bytes()
    assert has_ended()


def test_threads_may_quiesce_and_read_concurrently(file: forebay.File) -> None:
    failed: list[BaseException] = []

    def run(step: object) -> None:
        try:
            for _ in range(20):
                step()  # type: ignore[operator]
        except BaseException as error:
            failed.append(error)

    steps = [file.engine.quiesce] * 2 + [lambda: check(file)] * 2
    running = [threading.Thread(target=run, args=(step,)) for step in steps]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failed
    file.engine.quiesce()
    assert has_ended()


def test_a_store_of_blocks_must_be_closed(file: forebay.File, tmp_path: Path) -> None:
    engine = file.engine
    store = forebay.blocks.BlockStore(tmp_path / "blocks", "64MiB", engine=engine)
    with pytest.raises(TimeoutError, match="close block stores"):
        engine.quiesce(0)
    store.close()
    engine.quiesce()
    assert has_ended()


def test_a_forked_child_cannot_end_its_parents_engine(file: forebay.File) -> None:
    check(file)
    if not (child := os.fork()):
        try:
            file.engine.quiesce()
        except forebay.Forked:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    check(file)


def test_a_child_resumes_its_default_engine_after_its_parents_quiesce(file: forebay.File) -> None:
    path = Path(file.name)
    forebay.read(path, "cpu")
    forebay.default_engine().quiesce()
    if not (child := os.fork()):
        os._exit(7 if forebay.read(path, "cpu").tobytes() == path.read_bytes() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
