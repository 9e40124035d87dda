"""Which process, or which GPU of a process, reads which bytes of a model."""

from __future__ import annotations

import errno
import itertools
import json
import math
import operator
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from .._errors import Error, RequestError
from .._mesh import Listener, PeerFailed, host
from ._plan import ALIGNMENT

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
    """Processes that each read all bytes, through the page cache, each starting at another place.

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

    def prepare(self, engine: Engine, kind: Framework) -> Ranks:
        """Runs when all have planned the read; returns the ranks that do it."""
        return self

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
        """Waits until the piece of memory is full, or for ranks of a group until it is queued."""
        return wait(transfer)

    def settle(self) -> None:
        """Waits until all pieces are full; raises the error of the last one, if that of a group."""


class Failed:
    """A transfer that could not start; its process still takes part in later group calls."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self, timeout: float | None = None) -> NoReturn:
        raise self._error

    def progress(self) -> tuple[int, int]:
        return 0, 0

    def cancel(self) -> bool:
        return False


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


class Group(Ranks):
    """Processes that each read a part of the bytes, and get the rest from the others.

    If one fails, it still takes part in all group calls, so that no other waits for it.
    """

    joins_files = True

    def __init__(self, group: Any) -> None:
        import torch  # type: ignore[import-not-found,unused-ignore]

        self._torch = torch
        self._distributed = torch.distributed
        self._group = group
        super().__init__(
            self._distributed.get_rank(group), self._distributed.get_world_size(group)
        )
        # The failure of this rank in the last exchange, and whether each rank failed there. They are
        # looked at before the next one, so that the GPU has done its work by then.
        self._last: tuple[BaseException | None, Any] = None, None

    def room(self, nbytes: int) -> int:
        unit = self._size * ALIGNMENT
        return max(-(-nbytes // unit), 1) * unit

    def windows(self, room: int) -> Iterator[tuple[int, int]]:
        step = self._size * CHUNK
        for begin in range(0, room, step):
            yield begin, min(begin + step, room)

    def _part(self, window: tuple[int, int], rank: int) -> tuple[int, int]:
        begin, end = window
        own = (end - begin) // self._size
        return begin + rank * own, begin + (rank + 1) * own

    @contextmanager
    def planning(self, opened: Iterable[Opened] = ()) -> Iterator[Callable[[object], None]]:
        digest = sha256()
        try:
            for stamp in {one.root for one in opened}:
                stamp.check_place()
            yield lambda plan: digest.update(repr(plan).encode())
        except BaseException:
            self._compare(None)
            raise
        self._compare(digest.digest())

    def start(
        self, engine: Engine, requests: Requests, memory: list[Any], window: tuple[int, int]
    ) -> ManyTransfer:
        try:
            return requests.cut(*self._part(window, self._rank)).start(engine, *memory)
        except Exception as error:
            return cast("ManyTransfer", Failed(error))

    def finish(
        self,
        transfer: ManyTransfer,
        memory: list[Any],
        window: tuple[int, int],
        wait: Wait = result,
    ) -> dict[str, Any]:
        report: dict[str, Any] = {}
        failed: BaseException | None = None
        try:
            report = wait(transfer)
        except BaseException as error:
            failed = error
        self.settle()
        begin, end = self._part(window, self._rank)
        tensor = self._torch.as_tensor(memory[0])
        gather = self._distributed.all_gather_into_tensor
        gather(tensor[slice(*window)], tensor[begin:end], group=self._group)
        state = tensor.new_full((1,), failed is not None)
        states = state.new_empty(self._size)
        gather(states, state, group=self._group)
        self._last = failed, states
        return report

    def settle(self) -> None:
        (failed, states), self._last = self._last, (None, None)
        if failed is not None:
            raise failed
        if states is not None and states.any():
            raise of_another(states.tolist().index(1), "could not read its part")

    def _compare(self, digest: bytes | None) -> None:
        """Raises if another rank failed, or loads other tensors."""
        found: list[bytes | None] = [None] * self._size
        self._distributed.all_gather_object(found, digest, group=self._group)
        if digest is None:
            return
        if None in found:
            raise of_another(found.index(None), "could not start")
        others = [rank for rank, other in enumerate(found) if other != digest]
        if others:
            ours = f"the ranks {self._rank} and {others[0]} of the group load different tensors"
            raise RequestError(errno.EINVAL, f"cannot load the model: {ours}")


def of_another(rank: int, why: str) -> Error:
    """The error of a load that fails because another process does."""
    cause = "; its own error has the cause" if why.startswith("could not") else ""
    return Error(errno.EIO, f"cannot load the model: rank {rank} of the group {why}{cause}")


@dataclass(frozen=True, slots=True)
class OfHost:
    """The processes of a group of torch that run on this host and load the same model.

    Attributes:
        group: the group.
        model: identifies the model.
    """

    group: Any
    model: str


def _of_group(group: Any) -> Ranks:
    from ._near import Near

    listener = Listener()
    try:
        own, is_whole = {"host": host(), "address": listener.address}, not isinstance(group, OfHost)
        found = _of_all(group, own) if is_whole else _in_time(group, own)
        here = {rank: one["address"] for rank, one in found.items() if one["host"] == own["host"]}
        if is_whole and len(here) < len(found):
            return Group(group)
        if len(here) == 1 or listener.address not in here.values():
            return Ranks()
        mesh = listener.connect(here)
    except PeerFailed as error:
        raise of_another(error.rank, error.why) from None
    finally:
        listener.close()
    otherwise = Group(group) if is_whole else Ranks(mesh.rank, len(here))
    return Near(mesh, otherwise, is_whole)


def _of_all(group: Any, own: dict[str, str]) -> dict[int, dict[str, str]]:
    """What all processes of a group give, by rank."""
    from torch import distributed

    found: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, own, group=group)
    return dict(enumerate(found))


_PATIENCE = 30.0
"""Seconds for which a process of a server waits for others that may not load this model."""


def _in_time(of: OfHost, own: dict[str, str]) -> dict[int, dict[str, str]]:
    """What the processes give that load a model within `_PATIENCE` seconds, by rank.

    The first one whose time is over decides for all which ones these are. No collective of the
    group would do: some of its processes may not load this model.
    """
    from torch import distributed

    store = distributed.distributed_c10d._get_default_store()
    name = f"forebay/{of.model}"
    number = next(one for one in itertools.count() if not store.check([f"{name}/{one}"]))
    decision = f"{name}/{number}"
    keys = [f"{decision}/{rank}" for rank in range(distributed.get_world_size(of.group))]
    store.set(keys[distributed.get_rank(of.group)], json.dumps(own))
    until = time.monotonic() + _PATIENCE
    while not store.check(keys) and not store.check([decision]) and time.monotonic() < until:
        time.sleep(0.005)
    came = [rank for rank, key in enumerate(keys) if store.check([key])]
    decided = json.loads(store.compare_set(decision, "", json.dumps(came)))
    if absent := sorted({*range(len(keys))} - {*decided}):
        text = f"forebay loads without the ranks {absent}, which did not load this model in time"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
    return {rank: json.loads(store.get(keys[rank])) for rank in decided}


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
        return _of_group(group)
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
