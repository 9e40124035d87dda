"""`Engine.quiesce`: what it ends, and calls after it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import forebay
import pytest

SIZE = 8 << 20


def rings() -> set[str]:
    files = Path("/proc/self/fd").iterdir()
    return {file.name for file in files if file.is_symlink() and "io_uring" in os.readlink(file)}


def threads() -> set[str]:
    tasks = Path("/proc/self/task").iterdir()
    return {task.name for task in tasks if comm(task).startswith("forebay-")}


def comm(task: Path) -> str:
    try:
        name = (task / "comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if name in ("forebay-log", "forebay-callbac") else name  # of no engine


@dataclass
class Others:
    """Rings and threads of other engines of this process."""

    rings: set[str]
    threads: set[str]

    def are_alone(self) -> bool:
        """Whether the engine has no ring and no thread."""
        end = time.monotonic() + 60  # only distinguishes late from never
        while threads() - self.threads and time.monotonic() < end:
            time.sleep(0.001)  # the kernel removes an ended thread a bit later
        return not (threads() - self.threads or rings() - self.rings)


@pytest.fixture
def others() -> Others:
    return Others(rings(), threads())


@pytest.fixture
def engine(others: Others) -> forebay.Engine:
    return forebay.Engine()


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


def test_nothing_is_left_and_the_next_call_resumes(file: forebay.File, others: Others) -> None:
    engine = file.engine
    for _ in range(2):
        check(file)
        assert rings() - others.rings and threads() - others.threads
        assert engine.statistics().pinned > 0
        engine.quiesce()
        assert others.are_alone() and engine.statistics().pinned == 0
        assert not file.closed and file.size == SIZE and others.are_alone()
    file.write_from(b"new")
    assert Path(file.name).read_bytes()[:3] == b"new"
    engine.quiesce()
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        file.size


def test_memory_of_the_caller_stays(file: forebay.File, others: Others) -> None:
    engine = file.engine
    gpu, pinned = engine.allocate(SIZE, "sim"), engine.allocate(SIZE)
    for memory in (gpu, pinned):
        file.read_into(memory)
    engine.quiesce()
    assert gpu.tobytes() == pinned.tobytes() == Path(file.name).read_bytes()
    file.read_into(pinned)
    engine.quiesce()
    assert others.are_alone()


def test_it_waits_for_transfers(file: forebay.File, others: Others) -> None:
    engine = file.engine
    assert engine.gpu("sim:bandwidth=20MB/s") is not None
    transfer = file.start_read_into(target := engine.allocate(SIZE, "sim"))
    with pytest.raises(TimeoutError, match="in use"):
        engine.quiesce(0.01)
    transfer.add_done_callback(lambda _: None)
    del transfer
    engine.quiesce(None)
    assert target.tobytes() == Path(file.name).read_bytes()
    assert others.are_alone()


def test_threads_may_quiesce_and_read_concurrently(file: forebay.File, others: Others) -> None:
    expected = Path(file.name).read_bytes()

    def read() -> None:
        for offset in range(0, SIZE, SIZE // 64):
            memory = bytearray(SIZE // 64)
            file.read_into(memory, offset)
            assert memory == expected[offset : offset + len(memory)]

    def quiesce() -> None:
        for _ in range(20):
            file.engine.quiesce(None)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(step) for step in (read, quiesce) * 2]:
            done.result()
    file.engine.quiesce()
    assert others.are_alone()


def test_a_store_of_blocks_must_be_closed(
    file: forebay.File, tmp_path: Path, others: Others
) -> None:
    engine = file.engine
    store = forebay.blocks.BlockStore(tmp_path / "blocks", "64MiB", engine=engine)
    with pytest.raises(TimeoutError, match="close block stores"):
        engine.quiesce(0)
    store.close()
    engine.quiesce()
    assert others.are_alone()


def test_a_child_ends_no_engine_of_its_parent_and_may_resume_one_that_ended(
    file: forebay.File,
) -> None:
    def in_child() -> bool:
        with pytest.raises(forebay.Forked):
            file.engine.quiesce()
        return True

    def resumed() -> bool:
        check(file)
        return True

    check(file)
    assert succeeds(in_child)
    check(file)
    file.engine.quiesce()
    assert succeeds(resumed)
    check(file)


def succeeds(step: Callable[[], bool]) -> bool:
    """Whether `step` returns true in a forked child."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    try:
        os._exit(7 if step() else 1)
    finally:
        os._exit(1)


SNAPSHOT = """
import sys, time
from pathlib import Path
import forebay

path, ready, go, done = map(Path, sys.argv[1:])
expected = path.read_bytes()
file = forebay.open(path)

def check():
    file.evict()
    file.read_into(memory := bytearray(len(expected)))
    assert memory == expected

check()
forebay.default_engine().quiesce()
ready.touch()
while not go.exists():
    time.sleep(0.01)
check()
done.touch()
"""


def test_criu_restores_a_process_that_was_quiesced(file: forebay.File, tmp_path: Path) -> None:
    if not shutil.which("criu") or subprocess.run(["criu", "check"], check=False).returncode:
        pytest.skip("criu cannot be used")
    ready, go, done = paths = [tmp_path / name for name in ("ready", "go", "done")]
    command = [sys.executable, "-c", SNAPSHOT, file.name, *paths]
    null = subprocess.DEVNULL
    run = subprocess.Popen(
        command, stdin=null, stdout=null, stderr=null, cwd="/", start_new_session=True
    )
    appears(ready)
    (images := tmp_path / "images").mkdir()
    subprocess.run(["criu", "dump", "-t", str(run.pid), "-D", images], check=True)
    run.wait()
    go.touch()
    subprocess.run(["criu", "restore", "-d", "-D", images], check=True)
    appears(done)


def appears(path: Path) -> None:
    end = time.monotonic() + 60  # only distinguishes late from never
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.01)
