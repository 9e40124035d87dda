"""Tensors in sequence with bounded memory, read ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from .. import _process
from .._memory import fitting
from .._sizes import size_of
from ._frameworks import Framework
from ._frameworks import framework as chosen
from ._host import HostFile
from ._plan import Names, Part, naming, opened, parts
from ._ranks import Ranks, ranks
from ._slices import Shard, of_shard

if TYPE_CHECKING:
    from .._forebay import Engine, File, ManyTransfer
    from .._types import Device
    from ._files import Paths
    from ._header import Stored
    from ._plan import Opened
    from ._slices import Index

PARTS = 5
"""Parts of a window: one is in use, one has the tensor that a loop still holds as it requests the
next, and three are being read."""


class Ahead:
    """Reads parts in their order, up to a window with the two that were taken last."""

    def __init__(
        self,
        engine: Engine,
        framework: Framework,
        wanted: Iterable[Part],
        window: int,
        ranks: Ranks | None = None,
        files: Iterable[Opened] = (),
    ) -> None:
        self._engine = engine
        self._framework = framework
        self._ranks = ranks or Ranks()
        self._files = files
        self._wanted = iter(wanted)
        self._next = next(self._wanted, None)
        self._left = window
        # Bytes of the last two parts that were yielded.
        self._taken = self._before = 0
        self._coming: deque[tuple[Part, Any, tuple[int, int], ManyTransfer]] = deque()
        # The part that was started last, its memory, and its windows that have not been started.
        self._last: tuple[Part, Any, Iterator[tuple[int, int]]] | None = None

    def take(self) -> tuple[Part, Any] | None:
        """The next part and its memory. ``None`` after the last.

        The part before the one that was taken last counts as free.
        """
        self._left += self._before
        self._before, self._taken = self._taken, 0
        while self._start() or self._coming:
            while self._start():
                pass
            part, memory, window, transfer = self._coming.popleft()
            with naming([part]):
                self._ranks.finish(transfer, [memory], window)
            while self._coming and self._start():
                pass  # while the tensors are in use
            if not (self._next or self._last or self._coming):
                self._ranks.agree(self._files)
                self._ranks.close()
            if window[1] == len(memory):
                self._taken = part.nbytes
                return part, memory
        return None

    def _start(self) -> bool:
        """Starts to fill the next piece of memory, if there is room for it."""
        if len(self._coming) >= self._ranks.at_once:
            return False
        if self._last is None:
            if not self._next or (self._coming and self._next.nbytes > self._left):
                return False
            part, self._next = self._next, next(self._wanted, None)
            room = self._ranks.room(part.nbytes)
            with self._ranks.failing("could not start"):
                memory = self._framework.memory(room)
            self._left -= part.nbytes
            self._last = part, memory, self._ranks.windows(room)
        part, memory, windows = self._last
        window = next(windows)
        # It waits for the work on torch's stream that still uses earlier tensors there.
        transfer = self._ranks.start(self._engine, part.requests, [memory], window)
        self._coming.append((part, memory, window, transfer))
        if window[1] == len(memory):
            self._last = None
        return True

    def close(self) -> None:
        """Cancels pending reads."""
        while self._coming:
            self._coming.popleft()[3].cancel()


def iterate(
    paths: Paths,
    names: Names = None,
    device: Device = None,
    *,
    window: str | int = "1GiB",
    copy: bool = False,
    framework: str = "torch",
    shard: Shard = None,
    rank: int | None = None,
    world_size: int | None = None,
    group: Any = None,
    engine: Engine | None = None,
) -> Iterator[tuple[str, Any]]:
    """The tensors of a model one after another, as ``(name, tensor)``.

    They come in the order of the files, or in that of `names` if it is a list.

    Args:
        paths: as for `load_file`.
        names: as for `load_file`.
        device: as for `load_file`.
        window: bytes of memory for tensors that are being read or in use. A tensor that is larger
            than a fifth of it has separate memory of its size.
        copy: gives each tensor its own memory. Without it, tensors on a GPU that are read together
            share memory, which stays as long as one of them is kept, and tensors on the host are
            the pages of their files, as with `load_file`.
        framework: as for `load_file`.
        shard: as for `load_file`.
        rank: as for `load_file`.
        world_size: as for `load_file`.
        group: as for `load_file`. All processes take all tensors.
        engine: as for `load_file`.

    Raises:
        As `load_file` does, at the first tensor or at the one that fails.
    """
    together = ranks(rank, world_size, group, shard)
    yield from iterated(
        together, paths, names, device, window=window, copy=copy, framework=framework,
        shard=shard, engine=engine,
    )  # fmt: skip


def iterated(
    together: Ranks,
    paths: Paths,
    names: Names,
    device: Device,
    *,
    window: str | int,
    copy: bool = False,
    framework: str = "torch",
    shard: Shard = None,
    engine: Engine | None = None,
    planned: Callable[[Framework, list[tuple[Stored, Index]]], None] = lambda *_: None,
) -> Generator[tuple[str, Any]]:
    """As `iterate`; `planned` gets the tensors, and the part of each, before any is read."""
    with ExitStack() as stack:
        stack.callback(together.close)
        found = []
        files: dict[File, Opened] = {}
        with together.planning():
            kind = chosen(framework, device)
            engine = engine or _process.default_engine()
            most = size_of(window, "window")
            # All processes of a group need the same window.
            if kind.is_on_host and not together.joins_files:
                most = fitting(most)
            for one in opened(engine, paths, names, stack):
                files[one.file] = one
                for stored in one.tensors:
                    kind.check(stored)
                    found.append((one.file, stored, of_shard(shard, stored)))
            if isinstance(names, list | tuple):
                place = {name: number for number, name in reversed(list(enumerate(names)))}
                found.sort(key=lambda one: place[one[1].name])
            planned(kind, [(stored, index) for _, stored, index in found])
        with together.planning(files.values()) as show:
            show([most, *(stored.facts() for _, stored, _ in found)])
        together = together.prepare(engine, kind)
        most -= min(together.extra, most // 2)
        if together.is_alone and kind.is_on_host and not copy:
            hosts = {file: HostFile(engine, kind, one, most // PARTS) for file, one in files.items()}
            for file, stored, index in found:
                yield stored.name, hosts[file].tensor(stored, index)
            return
        ahead = Ahead(engine, kind, parts(found, max(most // PARTS, 1)), most, together, files.values())
        stack.callback(ahead.close)
        while taken := ahead.take():
            part, memory = taken
            for name, tensor in part.made(kind, memory):
                yield name, kind.copied(tensor) if copy else tensor
            del taken, memory, tensor
