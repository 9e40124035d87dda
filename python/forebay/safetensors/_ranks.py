"""Which process, or which GPU of a process, reads which bytes of a model."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from .._forebay import Engine, ManyResult, ManyTransfer
    from ._frameworks import Framework
    from ._plan import Opened
    from ._requests import Requests
    from ._slices import Shard

CHUNK = 64 << 20
"""Bytes that a rank of a group reads before they are sent to the others."""

AT_ONCE = 3
"""Windows that are filled at once: two are read while another is sent to other ranks."""

Wait: TypeAlias = "Callable[[ManyTransfer], dict[str, Any]]"
"""Waits for a transfer, and returns its report."""


def result(transfer: ManyTransfer) -> dict[str, Any]:
    """Waits for a transfer, and returns its report."""
    return transfer.result().report()


def merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """One report of several transfers, which may run at the same time."""
    if not reports:
        return {"bytes": 0, "routes": [], "seconds": {"elapsed": 0.0}, "not_direct": None}
    first, *others = reports
    routes = {(one["route"], one["reason"]): one for one in first["routes"]}
    for other in others:
        first["bytes"] += other["bytes"]
        first["not_direct"] = first["not_direct"] or other["not_direct"]
        for stage, seconds in other["seconds"].items():
            first["seconds"][stage] += seconds
        for one in other["routes"]:
            routes.setdefault((one["route"], one["reason"]), one | {"bytes": 0})
            routes[one["route"], one["reason"]]["bytes"] += one["bytes"]
    first["routes"] = list(routes.values())
    return first


class Ranks:
    """Processes that all read all bytes through the page cache, from different offsets.

    Bytes that one has read are in the page cache when the others reach them. So the drive is read
    once.

    Attributes:
        is_alone: whether there is one process only.
        joins_files: whether the tensors of all files share memory, since the processes exchange
            pieces of it.
        at_once: windows that are filled at once.
        extra: bytes of memory beyond the windows.
    """

    joins_files = False
    at_once: float = math.inf
    extra = 0

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.is_alone = size == 1
        self._rank = rank
        self._size = size

    @contextmanager
    def planning(self, opened: Iterable[Opened] = ()) -> Iterator[Callable[[object], None]]:
        """Runs before a read; the function gets the plan, which all ranks must share.

        Args:
            opened: the files, which all ranks have opened in an earlier block. Those that are still
                in place are the same for all ranks.
        """
        yield lambda plan: None

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        """Reports to the other ranks what failed, if the block does."""
        yield

    def prepare(self, engine: Engine, kind: Framework) -> Ranks:
        """Runs when all have planned the read; returns the ranks that do it."""
        return self

    def agree(self, opened: Iterable[Opened]) -> None:
        """Checks when all bytes have been read that no file was written to, for all ranks."""
        for one in opened:
            one.stamp.check()

    def close(self) -> None:
        """Ends the load, whether or not it was successful."""

    def room(self, nbytes: int) -> int:
        """Bytes of memory for a part of `nbytes` bytes."""
        return nbytes

    def windows(self, room: int) -> Iterator[tuple[int, int]]:
        """The pieces of memory that are filled one after another."""
        yield 0, room

    def start(
        self, engine: Engine, requests: Requests, memory: list[Any], window: tuple[int, int]
    ) -> ManyTransfer:
        """Starts filling a piece of the memory of each device."""
        [own] = memory
        if self.is_alone:
            return requests.start(engine, own)
        begin = window[1] * self._rank // self._size
        return requests.turned(begin, window[1]).start(engine, own, "cached")

    def finish(
        self,
        transfer: ManyTransfer,
        memory: list[Any],
        window: tuple[int, int],
        wait: Wait = result,
    ) -> dict[str, Any]:
        """Waits until the piece of memory is full."""
        return wait(transfer)


class _ToAll:
    """A read to several devices, which runs when its result is requested."""

    def __init__(
        self, engine: Engine, requests: Requests, memory: list[Any], window: tuple[int, int]
    ) -> None:
        self._engine, self._requests = engine, requests.cut(*window)
        self._memory, self._window = memory, slice(*window)

    def result(self, timeout: float | None = None) -> ManyResult:
        if all(one.is_cuda for one in self._memory):
            return self._requests.read_to_all(self._engine, self._memory)
        first, *others = self._memory
        found = self._requests.start(self._engine, first).result()
        for other in others:
            other[self._window].copy_(first[self._window])
        return found

    def progress(self) -> tuple[int, int]:
        return 0, 0

    def cancel(self) -> bool:
        return False


class Devices(Ranks):
    """This process for several GPUs, each of which gets all bytes: each byte is read once."""

    joins_files = True

    def windows(self, room: int) -> Iterator[tuple[int, int]]:
        for begin in range(0, max(room, 1), 64 * CHUNK):
            yield begin, min(begin + 64 * CHUNK, room)

    def start(
        self, engine: Engine, requests: Requests, memory: list[Any], window: tuple[int, int]
    ) -> ManyTransfer:
        return cast("ManyTransfer", _ToAll(engine, requests, memory, window))


def ranks(
    rank: int | None, world_size: int | None, group: Any, shard: Shard, devices: int = 1
) -> Ranks:
    """The processes, or the devices, for the arguments of a call."""
    if devices == 0:
        raise ValueError("`device` cannot be an empty list")
    if devices > 1:
        for name, value in {"rank": rank, "world_size": world_size, "group": group}.items():
            if value is not None:
                raise ValueError(f"several devices and `{name}` cannot be given together")
        return Devices(size=devices)
    if group is not None:
        for name, value in {"rank": rank, "world_size": world_size, "shard": shard}.items():
            if value is not None:
                raise ValueError(f"`group` and `{name}` cannot be given together")
        from . import _group

        return _group.of(group)
    if rank is None and world_size is None:
        return Ranks()
    try:
        own, size = operator.index(rank), operator.index(world_size)  # type: ignore[arg-type]
    except TypeError:
        own, size = 0, 0
    if not 0 <= own < size:
        raise ValueError(
            f"`rank` and `world_size` cannot be {rank} and {world_size}: a rank is a number from 0 "
            "to `world_size` - 1"
        )
    return Ranks(own, size)
