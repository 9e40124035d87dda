"""What all tests share: an engine of their own, a simulated GPU, and files."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path

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
