"""Reads whose caller drops every handle of the engine at once."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

import forebay
import pytest

_COUNT = 8
_BOUND_S = 60
"""Only distinguishes late from never."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path, bytes_ = tmp_path_factory.mktemp("data") / "file", os.urandom(24 << 20)
    with path.open("wb") as file:
        file.write(bytes_)
        os.fsync(file.fileno())
    return path, bytes_


@pytest.mark.parametrize("size", [5000, 64 << 10, 1 << 20])
@pytest.mark.parametrize("device", ["sim", None])
@pytest.mark.parametrize("is_cold", [True, False])
@pytest.mark.parametrize("order", list(itertools.permutations(("engine", "file", "transfers"))))
def test_reads_arrive_without_handles(
    data: tuple[Path, bytes],
    size: int,
    device: str | None,
    is_cold: bool,
    order: tuple[str, ...],
) -> None:
    path, bytes_ = data
    engine = forebay.Engine()
    file = engine.open(path)
    buffers = [engine.allocate(size, device) for _ in range(_COUNT)]
    # The first read makes threads, rings and pinned memory.
    file.read_into(engine.allocate(size, device), 0)
    if is_cold:
        file.evict()
    else:
        path.read_bytes()
    called = threading.Semaphore(0)
    offsets = [(1 + 2 * number) << 20 for number in range(_COUNT)]
    transfers = [file.start_read_into(buffer, at) for buffer, at in zip(buffers, offsets)]
    for transfer in transfers[::2]:
        transfer.add_done_callback(lambda _: called.release())
    del transfer
    handles = {"engine": [engine], "file": [file], "transfers": transfers}
    del engine, file, transfers
    for name in order:
        handles.pop(name).clear()
    for _ in range(_COUNT // 2):
        assert called.acquire(timeout=_BOUND_S), "a callback"
    start = time.monotonic()
    for buffer, at in zip(buffers, offsets):
        while not _is(buffer, bytes_[at : at + size]):
            assert time.monotonic() - start < _BOUND_S, "the bytes arrive"
            time.sleep(0.001)


def _is(buffer: forebay.Buffer, expected: bytes) -> bool:
    try:
        return buffer.tobytes() == expected
    except forebay.Error:
        return False  # a transfer without a handle still fills it
