"""What all tests share: an engine of their own, a simulated GPU, and files."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forebay
import pytest
from arrays import SimArray


@pytest.fixture(scope="session")
def engine() -> forebay.Engine:
    return forebay.Engine()


@pytest.fixture(scope="session")
def sim(engine: forebay.Engine) -> Callable[[int], SimArray]:
    """Makes arrays on the simulated GPU."""

    def make(nbytes: int) -> SimArray:
        return SimArray(engine.allocate(nbytes, "sim"))

    return make


def content(nbytes: int, seed: int = 1) -> bytes:
    """Bytes that differ from place to place."""
    return random.Random(seed).randbytes(nbytes)


@pytest.fixture
def data(tmp_path: Path) -> Iterator[tuple[Path, bytes]]:
    """A file of an odd length, and what is in it."""
    path, bytes_ = tmp_path / "data", content(3_000_001)
    path.write_bytes(bytes_)
    yield path, bytes_


@pytest.fixture
def slow_gpu(engine: forebay.Engine) -> forebay.Engine:
    """An engine whose simulated GPU takes a second for each megabyte."""
    slow = forebay.Engine()
    assert slow.gpu("sim:bandwidth=1MB/s") is not None
    return slow


def memory_taken(path: Path) -> tuple[int, str]:
    """Bytes of memory that opening a model takes, and the error's text."""
    code = """
import sys
from pathlib import Path
from forebay.safetensors import FormatError, safe_open

def most():
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

try:
    safe_open("/dev/null", "numpy")  # what is made once
except OSError:
    pass
before, text = most(), ""
try:
    safe_open(sys.argv[1], "numpy")
except FormatError as error:
    text = str(error)
print(1024 * (most() - before), text)
"""
    number, _, text = program(code, path).stdout.partition(" ")
    return int(number), text.strip()


def waits_in_vain(*waits: Callable[[], object]) -> bool:
    """Whether each of these ends since its time is over."""
    for wait in waits:
        try:
            wait()
            return False
        except TimeoutError as error:
            assert "continues" in str(error)
    return True


def children_left() -> int:
    """Threads of this process."""
    return len(os.listdir("/proc/self/task"))


def program(
    code: str, *arguments: object, ends: int | None = 0, timeout: float = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a new process, which must end with a status, unless `ends` is `None`."""
    command = [sys.executable, *options.pop("flags", []), "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=timeout, **options
    )
    assert ends is None or done.returncode == ends, done.stderr
    return done
