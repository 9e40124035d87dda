"""Calls that wait for a file server do so without the interpreter: other threads of Python run."""

from __future__ import annotations

import gc
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import content
from faulty import mounted
from forebay import _forebay
from forebay.safetensors import safe_open

BYTES = content(50_000)

#: A call to make while the server is silent.
Step = Callable[[], object]


class Server:
    """Files on a server that can be silent."""

    def __init__(self, mount: Path) -> None:
        self.mount, self.folder = mount, mount.parent / "below"
        self.local = mount.parent / "local"
        self.local.write_bytes(BYTES)
        for name in ["a", "b"]:
            (self.folder / name).write_bytes(BYTES)
        header = b'{"x":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
        model = len(header).to_bytes(8, "little") + header + b"1234"
        (self.folder / "model.safetensors").write_bytes(model)

    def __truediv__(self, name: str) -> Path:
        return self.mount / name

    def mapped(self) -> mmap.mmap:
        """The pages of a file of the server, none of which is there."""
        with open(self / "b", "r+b") as file:
            return mmap.mmap(file.fileno(), len(BYTES))

    def answers_late(self, step: Step, meanwhile: Step = lambda: None) -> None:
        """Runs a call while the server is silent. This thread makes another call, then ends the
        silence."""
        silent, called = self.mount.parent / "silent", self.mount.parent / "called"
        called.unlink(missing_ok=True)
        silent.touch()
        failed: list[BaseException] = []

        def run() -> None:
            try:
                step()
            except (forebay.Error, ValueError):
                pass  # the server cannot do that, or the file is of another kind
            except BaseException as error:
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            while not called.exists():
                assert thread.is_alive(), f"the server was not called: {failed}"
                time.sleep(0.005)
            meanwhile()
            # The server gave up its silence if no thread of this process ran.
            assert silent.exists(), "the interpreter was held"
        finally:
            silent.unlink(missing_ok=True)
            thread.join()
        assert not failed, failed


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with mounted(tmp_path_factory.mktemp("silent"), silent=30) as mount:
        yield Server(mount)


def opened(call: Callable[[forebay.File], object], mode: str = "r") -> Callable[[Server], Step]:
    """A call for a file of the server that was opened before."""

    def make(server: Server) -> Step:
        file = forebay.open(server / "a", mode)
        return lambda: call(file)

    return make


def into_pages(call: Callable[[forebay.File, mmap.mmap], object]) -> Callable[[Server], Step]:
    """A call with bytes that are in memory and a target that is a file of the server."""

    def make(server: Server) -> Step:
        file, pages = forebay.open(server.local, "r+"), server.mapped()
        file.read_into(bytearray(len(BYTES)))
        return lambda: call(file, pages)

    return make


def dropped(make: Callable[[Server], Any]) -> Callable[[Server], Step]:
    """The drop of an object."""

    def maker(server: Server) -> Step:
        kept = [make(server)]
        return lambda: (kept.clear(), gc.collect())

    return maker


def committed(server: Server) -> Step:
    made = _forebay.Replacement(server / "b")
    os.write(made.number, BYTES)
    return lambda: made.commit(True)


CALLS: dict[str, Callable[[Server], Step]] = {
    "open": lambda server: lambda: forebay.open(server / "a"),
    "read": lambda server: lambda: forebay.read(server / "a", None),
    "size": opened(lambda file: file.size),
    "read_into": opened(lambda file: file.read_into(bytearray(len(BYTES)))),
    "start_read_into": opened(lambda file: file.start_read_into(bytearray(100)).result()),
    "readv": opened(lambda file: file.readv([(0, 100, bytearray(100))])),
    "write_from": opened(lambda file: file.write_from(b"1" * 100), "r+"),
    "start_write_from": opened(lambda file: file.start_write_from(b"1" * 100).result(), "r+"),
    "writev": opened(lambda file: file.writev([(0, 5, b"12345")]), "r+"),
    "sync": opened(lambda file: (file.write_from(b"1"), file.sync()), "r+"),
    "preallocate": opened(lambda file: file.preallocate(0, 100_000), "r+"),
    "truncate": opened(lambda file: file.truncate(60_000), "r+"),
    "residency": opened(lambda file: file.residency()),
    "evict": opened(lambda file: file.evict(), "r+"),
    "close": opened(lambda file: file.close(), "r+"),
    "drop of a file": dropped(lambda server: forebay.open(server / "a", "r+")),
    "target": into_pages(lambda file, pages: file.read_into(pages)),
    "target of a start": into_pages(lambda file, pages: file.start_read_into(pages).result()),
    "target of many": into_pages(lambda file, pages: file.readv([(0, 9000, pages)])),
    "source": into_pages(lambda file, pages: file.write_from(pages)),
    "source of a start": into_pages(lambda file, pages: file.start_write_from(pages).result()),
    "Header": opened(lambda file: _forebay.Header.read(file, "a", object)),
    "Archive": opened(_forebay.Archive),
    "safe_open": lambda server: lambda: safe_open(server / "model.safetensors", "numpy"),
    "Descriptor": lambda server: lambda: _forebay.Descriptor(server / "a", os.O_RDONLY),
    "drop of a descriptor": dropped(
        lambda server: _forebay.Descriptor(server / "a", os.O_RDWR)
    ),
    "Replacement": lambda server: lambda: _forebay.Replacement(server / "b"),
    "commit": committed,
    "drop of a replacement": dropped(lambda server: _forebay.Replacement(server / "b")),
    "remove_temporary": lambda server: lambda: _forebay.remove_temporary(server.mount, "b"),
    "FileStamp": opened(_forebay.FileStamp),
}


@pytest.mark.parametrize("call", CALLS)
def test_other_threads_run_while_a_server_is_silent(server: Server, call: str) -> None:
    server.answers_late(CALLS[call](server))


def test_a_replacement_is_looked_at_while_it_is_committed(server: Server) -> None:
    made = _forebay.Replacement(server / "b")
    server.answers_late(lambda: made.commit(True), lambda: made.old)
