"""Stores of blocks."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay.blocks import BlockStore
from forebay.lmcache import Client


def opened(root: Path, **options: Any) -> BlockStore:
    return BlockStore(root, **{"capacity": "64MiB", "keep_free": 0, **options})


def content(number: int, size: int = 5000) -> bytes:
    return (f"{number} ".encode() * size)[:size]


def test_blocks_come_back(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        keys: list[str | bytes] = ["a", b"a\0\xff", "ä" * 10_000, "/../x", "\ud800", ""]
        blocks = [content(number) for number in range(len(keys))]
        assert store.set(keys, blocks) == [True] * 6
        targets = [bytearray(5000) for _ in keys]
        assert store.get([*keys, "b"], [*targets, bytearray(5000)]) == [True] * 6 + [False]
        assert targets == blocks
        assert store.exists(["a", "b"]) == [True, False]
        assert store.find_at_once(["a"]) == [True]
        assert store.delete(["a", "b"]) == [True, False]
        assert store.get(["a"], [targets[0]]) == [False]
        assert store.usage()[0] == 5
        [root] = store.statistics()
        assert (root["hits"], root["missed"], root["stored"]) == (6, {"absent": 2}, 6)
        assert root["load"]["count"] == 6 and root["load"]["p99_us"] > 0
        store.sync()
        store.clear()
        assert store.usage() == (0, 0)
    with pytest.raises(ValueError, match="closed"):
        store.exists(["a"])


def test_pieces_and_kinds_of_memory(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    engine = forebay.Engine()
    store = opened(tmp_path, engine=engine)
    layers = numpy.arange(3000, dtype="int16").reshape(3, 1000)
    gpu = engine.allocate(6000, "sim")
    assert store.set(["page"], [list(layers)]) == [True]
    assert store.get(["page"], [gpu]) == [True]
    assert gpu.tobytes() == layers.tobytes()
    assert store.set(["copy"], [gpu]) == [True]
    parts = [bytearray(1), numpy.zeros(5999, dtype="uint8")]
    assert store.get(["copy"], [parts]) == [True]
    assert bytes(parts[0]) + parts[1].tobytes() == layers.tobytes()


def test_futures_and_awaits(tmp_path: Path) -> None:
    store = opened(tmp_path)
    call = store.start_set(["a", "a"], [content(1), content(1)])
    assert call.result() == [True, True] and call.done()
    called = threading.Event()
    store.start_exists(["a"]).add_done_callback(lambda _: called.set())
    assert called.wait(10)

    async def both() -> list[list[bool]]:
        target = bytearray(5000)
        return [await store.start_get(["a"], [target]), await store.start_delete(["a"])]

    assert asyncio.run(both()) == [[True], [True]]
    missed = store.start_get(["a"], [bytearray(5000)])
    assert missed.reasons() == ["absent"]
    long = store.start_set(["long"], [bytes(65 << 20)])
    assert long.reasons() == ["too long"]


def test_arguments_are_checked(tmp_path: Path) -> None:
    with pytest.raises(forebay.RequestError, match="give `capacity`"):
        BlockStore(tmp_path)
    with pytest.raises(forebay.RequestError, match="`capacity` cannot be `much`"):
        opened(tmp_path, capacity="much")
    with pytest.raises(ValueError, match="takes `lru` or `lfu`"):
        opened(tmp_path, policy="fifo")
    (tmp_path / "format").write_text("something of a user")
    with pytest.raises(forebay.RequestError, match="choose another folder"):
        opened(tmp_path)
    store = opened(tmp_path / "store")
    with pytest.raises(ValueError, match=r"memory has fewer blocks \(1\) than keys \(2\)"):
        store.get(["a", "b"], [bytearray(1)])
    with pytest.raises(ValueError, match=r"memory has more blocks than keys \(1\)"):
        store.get(["a"], [bytearray(1), bytearray(1)])
    with pytest.raises(TypeError, match="must be a list of keys"):
        store.exists("a")
    with pytest.raises(TypeError, match="a key must be `bytes` or `str`, not `float`"):
        store.exists([1.5])
    with pytest.raises(BufferError, match="read-only") as raised:
        store.get(["a"], [b"1"])
    assert raised.value.__notes__ == ["it is for block 0"]


def test_several_roots_share_the_blocks(tmp_path: Path) -> None:
    roots: dict[Any, Any] = {tmp_path / "one": "32MiB", tmp_path / "two": "96MiB"}
    store = BlockStore(roots, keep_free=0)
    keys = [f"key {number}" for number in range(400)]
    assert all(store.set(keys, [content(number) for number in range(400)]))
    assert all(store.get(keys, [bytearray(5000) for _ in keys]))
    one, two = (root["stored"] for root in store.statistics())
    assert one + two == 400 and 60 < one < 140  # a quarter of the capacity


def test_the_client_of_lmcache(tmp_path: Path) -> None:
    given = {"root": str(tmp_path), "capacity": "64MiB", "keep_free": 0}
    with pytest.warns(RuntimeWarning, match="the type of the KV cache"):
        Client(**given).close()
    client, other = (Client(**given, namespace=f"main {kind}") for kind in ("bf16", "fp16"))

    def ended(number: int, client: Client = client) -> Any:
        assert select.select([client.event_fd()], [], [], 20)[0], "no event"
        [result] = client.drain_completions()
        assert result[0] == number
        return result[1:]

    memory = bytearray(b"0123456789" * 1000)
    views = [memoryview(memory)[at : at + 3001] for at in (1, 3002)]  # not aligned
    assert ended(client.submit_batch_set(["a@1", "b/../2"], views)) == (True, "", [True] * 2)
    target = bytearray(9003)
    parts = [memoryview(target)[at : at + 3001] for at in (0, 3001, 6002)]
    got = ended(client.submit_batch_get(["a@1", "nothing", "b/../2"], parts))
    assert got == (True, "", [True, False, True])
    assert parts[0] == views[0] and parts[2] == views[1]
    assert ended(client.submit_batch_exists(["a@1", "c"]))[2] == [True, False]
    assert ended(other.submit_batch_exists(["a@1"]), other)[2] == [False]
    assert ended(client.submit_batch_delete(["a@1"]))[2] == [True]
    assert ended(client.submit_batch_exists(["a@1"]))[2] == [False]
    client.close()


def test_stores_of_a_server_wait_for_the_drive(tmp_path: Path) -> None:
    root = {"root": str(tmp_path / "root"), "capacity": "4GiB", "keep_free": 0}
    client = Client(**root, namespace="main bf16", timeout=600)
    block = memoryview(bytes(4 << 20))
    keys = [str(number) for number in range(300)]  # 1.2 GB
    client.submit_batch_set(keys, [block] * len(keys))
    assert select.select([client.event_fd()], [], [], 600)[0]
    assert client.drain_completions() == [(0, True, "", [True] * len(keys))]
    assert client.statistics()[0]["dropped"] == {}
    client.close()
    shutil.rmtree(tmp_path / "root")


def test_a_forked_child_is_refused(tmp_path: Path) -> None:
    program = """
import os, sys, forebay
from forebay.blocks import BlockStore

store = BlockStore(sys.argv[1], capacity="64MiB", keep_free=0)
assert store.set(["a"], [b"1"]) == [True]
if child := os.fork():
    assert os.waitpid(child, 0)[1] == 0
    assert store.get(["a"], [bytearray(1)]) == [True]
else:
    try:
        store.get(["a"], [bytearray(1)])
    except forebay.Forked:
        del store
        again = BlockStore(sys.argv[1], capacity="64MiB", keep_free=0, engine=forebay.Engine())
        os._exit(0 if again.get(["a"], [bytearray(1)]) == [True] else 2)
    os._exit(1)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    subprocess.run(command, check=True, timeout=60)


WRITER = """
import sys
from forebay.blocks import BlockStore

store = BlockStore(sys.argv[1], capacity="64MiB", keep_free=0)
number = int(sys.argv[2])
while True:
    keys = [f"{number + step}" for step in range(8)]
    blocks = [(f"{number + step} ".encode() * 5000)[:5000] for step in range(8)]
    if all(store.set(keys, blocks)):
        print(number, flush=True)
    number += 8
"""


def test_a_killed_writer_loses_nothing_that_was_stored(tmp_path: Path) -> None:
    stored: list[int] = []
    for round_ in range(12):
        start = str(round_ * 1_000_000)
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), start], stdout=subprocess.PIPE
        )
        assert writer.stdout
        stored.append(int(writer.stdout.readline()))
        time.sleep(0.01 * round_)
        os.kill(writer.pid, signal.SIGKILL)
        stored += [int(line) for line in writer.stdout]
        writer.wait()
    store = opened(tmp_path)
    recent = [number + step for number in stored[-500:] for step in range(8)]
    targets = [bytearray(5000) for _ in recent]
    found = store.get([str(number) for number in recent], targets)
    for number, is_there, target in zip(recent, found, targets, strict=True):
        assert not is_there or target == content(number)
    # The index has room for 4,096 blocks, and the last ones may have been in two processes.
    assert sum(found) > 0.95 * len(found), (sum(found), len(found))
    assert "damaged" not in store.statistics()[0]["missed"]
    # What killed writers had begun is free again.
    assert all(store.set([f"new {number}" for number in range(2000)], [content(0)] * 2000))


FORKED_WRITER = """
import os, sys, time
from forebay.blocks import BlockStore

store = BlockStore(sys.argv[1], capacity="256MiB", keep_free=0)
store.set(["first"], [bytes(1 << 20)])
if child := os.fork():
    print(child, flush=True)
    while True:
        store.delete([str(number) for number in range(16)])
        store.set([str(number) for number in range(16)], [bytes(1 << 20)] * 16)
else:
    time.sleep(60)
"""


def test_a_forked_child_keeps_no_lock_of_a_killed_writer(tmp_path: Path) -> None:
    for _ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", FORKED_WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout
        child = int(writer.stdout.readline())
        time.sleep(0.2)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        with BlockStore(tmp_path, capacity="256MiB", keep_free=0) as store:
            keys = [str(number) for number in range(16)]
            call = store.start_set(keys, [bytes(1 << 20)] * 16)
            assert call.result(20) == [True] * 16, call.reasons()
        os.kill(child, signal.SIGKILL)


def test_two_processes_write_a_block_once(tmp_path: Path) -> None:
    program = """
import sys
from forebay.blocks import BlockStore

store = BlockStore(sys.argv[1], capacity="64MiB", keep_free=0)
input()
keys = [str(number) for number in range(500)]
assert all(store.set(keys, [key.encode() * 1000 for key in keys]))
[root] = store.statistics()
print(root["stored"], root["present"])
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    pipe = subprocess.PIPE
    both = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    for process in both:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    ends = [process.communicate(timeout=60)[0].split() for process in both]
    assert all(process.returncode == 0 for process in both)
    assert sum(int(stored) for stored, _ in ends) == 500
    assert sum(int(present) for _, present in ends) == 500
