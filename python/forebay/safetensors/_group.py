"""Processes that read disjoint parts of a model, and copy the rest from their peers."""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import threading
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from .. import _mesh, _process
from .._errors import Error, Forked, RequestError
from .._mesh import Listener, Mesh, PeerFailed, begun, host, name_for
from .._threads import log
from ._plan import ALIGNMENT
from ._ranks import AT_ONCE, CHUNK, Ranks, Wait, result
from ._shared import GpuMemory

if TYPE_CHECKING:
    from .._forebay import Engine, ManyTransfer
    from ._frameworks import Framework
    from ._plan import Opened
    from ._requests import Requests

SLOTS = AT_ONCE + 1
"""Slots for parts of windows: peers copy a slot while the next ones are filled."""

PATIENCE = 30.0
"""Seconds for which a process of a server waits for peers that may not load this model."""

_SILENT = 10.0
"""Seconds after which the log names the processes of a group that have not begun a load."""

_LOG = "forebay.safetensors"

_turns: defaultdict[object, threading.Lock] = defaultdict(threading.Lock)
"""Locks by store and key: a single thread of this process uses a key at a time."""

_kept: list[object] = []
"""Memory that is never freed, since a process may still map it."""


@dataclass(frozen=True, slots=True)
class OfHost:
    """The processes of a group of torch that run on this host and load the same model.

    Attributes:
        group: the group.
        model: identifies the model.
    """

    group: Any
    model: str


class Slots:
    """Memory of a process that its peers map.

    A slot is filled again when all processes have the next window.

    Attributes:
        extra: bytes of memory beyond the windows.
        handle: the text by which peers map the memory.
        settle: waits until the copies have ended.
    """

    def __init__(self, engine: Engine, kind: Framework, rank: int) -> None:
        self.extra = SLOTS * CHUNK
        self._memory, self._rank = kind.shared(engine, self.extra), rank
        self.handle = self._memory.handle
        self._of_all: list[Any] = []
        self._started = self._copied = 0
        self.settle: Callable[[], object] = lambda: None

    def map(self, handles: list[str]) -> None:
        """Maps the memory of peers."""
        for rank, handle in enumerate(handles):
            is_own = rank == self._rank
            self._of_all.append(self._memory.own if is_own else self._memory.map(handle))

    def start(
        self, engine: Engine, requests: Requests, memory: Any, begin: int
    ) -> ManyTransfer:
        """Starts to read the part of this process, which begins at `begin` in `memory`."""
        slot = self._started % SLOTS * CHUNK
        self._started += 1
        return requests.moved(slot - begin).start(engine, self._memory.own)

    def copy(self, memory: Any, parts: list[tuple[int, int]]) -> None:
        """Fills a window, in the order of the stream. All processes have read their parts."""
        slot = self._copied % SLOTS * CHUNK
        self._copied += 1
        for step in range(len(parts)):  # every rank starts at a different part
            rank = (self._rank + step) % len(parts)
            begin, end = parts[rank]
            memory[begin:end] = self._of_all[rank][slot : slot + end - begin]
        self.settle = self._memory.mark()

    def unmap(self) -> bool:
        """Unmaps the memory of peers; returns whether they may use freed memory of it."""
        self.settle()
        self._of_all.clear()
        return isinstance(self._memory, GpuMemory)


class Collective:
    """The all-gather of a group of torch."""

    extra = 0

    def __init__(self, group: Any, mesh: Mesh) -> None:
        self._group, self._mesh = group, mesh

    def start(
        self, engine: Engine, requests: Requests, memory: Any, begin: int
    ) -> ManyTransfer:
        return requests.start(engine, memory)

    def copy(self, memory: Any, parts: list[tuple[int, int]]) -> None:
        import torch  # type: ignore[import-not-found,unused-ignore]

        tensor = torch.as_tensor(memory)
        whole, own = tensor[parts[0][0] : parts[-1][1]], tensor[slice(*parts[self._mesh.rank])]
        gather = torch.distributed.all_gather_into_tensor
        work: Any = gather(whole, own, group=self._group, async_op=True)
        try:
            while not work.is_completed():
                self._mesh.watch()
                time.sleep(0.0001)
            work.wait()
        except RuntimeError:
            self._mesh.watch(1.0)  # the loss of a process may be the cause
            raise

    def settle(self) -> None:
        pass  # `copy` has waited


class Group(Ranks):
    """Processes that read their part of a window and report it, then copy the parts of peers.

    No process waits for a failed peer: all raise an error that names it.
    """

    joins_files = True
    at_once = AT_ONCE

    def __init__(self, mesh: Mesh, group: Any, is_one_host: bool) -> None:
        """Without a `group`, processes that share no memory read all bytes each."""
        super().__init__(mesh.rank, len(mesh.names))
        self._mesh, self._group, self._is_one_host = mesh, group, is_one_host
        self._plan = b""
        self._slots: Slots | None = None
        self._copies: Slots | Collective | None = None

    @contextmanager
    def planning(self, opened: Iterable[Opened] = ()) -> Iterator[Callable[[object], None]]:
        digest = sha256()
        with self.failing("could not start"):
            for stamp in dict.fromkeys(one.root for one in opened):
                stamp.check_place()
                if self._is_one_host:
                    digest.update(repr(stamp.identity()).encode())
            yield lambda plan: digest.update(repr(plan).encode())
        self._plan = digest.digest()
        self._exchange()

    def prepare(self, engine: Engine, kind: Framework) -> Ranks:
        plans = self._exchange(self._plan)
        other = next((rank for rank, plan in enumerate(plans) if plan != self._plan), None)
        if other is not None and self._group is not None:
            both = sorted(self._mesh.names[rank] for rank in (self._rank, other))
            ours = "the ranks {} and {} of the group load different tensors".format(*both)
            raise RequestError(errno.EINVAL, f"cannot load the model: {ours}")
        why = "" if other is None else "it loads different tensors"
        if reason := self._share(engine, kind, why) if self._is_one_host else "":
            self._unmap()
            if self._group is None:
                self.close()
                if self._rank == 0:
                    text = f"forebay: each rank reads the whole model, because of {reason}"
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
                return Ranks(self._rank, self._size)
            log(logging.WARNING, _LOG, f"the group's all-gather copies the parts: {reason}")
        self._copies = self._slots or Collective(self._group, self._mesh)
        self.extra = self._copies.extra
        return self

    def _share(self, engine: Engine, kind: Framework, why: str) -> str:
        """Maps the memory of peers, unless `why` says that this process cannot.

        Returns the reason of the first process that cannot.
        """
        handle = ""
        try:
            if not why:
                self._slots = Slots(engine, kind, self._rank)
                handle = self._slots.handle
        except Exception as error:
            why = str(error) or repr(error)
        handles = [other.decode() for other in self._exchange(handle.encode())]
        try:
            if self._slots and all(handles):
                self._slots.map(handles)
        except Exception as error:
            why = str(error) or repr(error)
        reasons = self._exchange(ascii(why)[1:-1][:1000].encode())
        by_rank = zip(self._mesh.names, reasons, strict=True)
        return next((f"rank {rank} of the group: {why.decode()}" for rank, why in by_rank if why), "")

    def room(self, nbytes: int) -> int:
        unit = self._size * ALIGNMENT
        return max(-(-nbytes // unit), 1) * unit

    def windows(self, room: int) -> Iterator[tuple[int, int]]:
        count, unit = -(-room // (self._size * CHUNK)), self._size * ALIGNMENT
        step = -(-room // (count * unit)) * unit  # of equal length
        for begin in range(0, room, step):
            yield begin, min(begin + step, room)

    def _parts(self, window: tuple[int, int]) -> list[tuple[int, int]]:
        begin, end = window
        own = (end - begin) // self._size
        return [(at, at + own) for at in range(begin, end, own)]

    def start(
        self, engine: Engine, requests: Requests, memory: list[Any], window: tuple[int, int]
    ) -> ManyTransfer:
        assert self._copies, "prepared"
        begin, end = self._parts(window)[self._rank]
        with self.failing("could not read its part"):
            return self._copies.start(engine, requests.cut(begin, end), memory[0], begin)

    def finish(
        self,
        transfer: ManyTransfer,
        memory: list[Any],
        window: tuple[int, int],
        wait: Wait = result,
    ) -> dict[str, Any]:
        assert self._copies, "prepared"
        with self.failing("could not read its part"):
            report = wait(transfer)
            self._copies.settle()  # the exchange lets peers fill their next slots
        self._exchange()
        with self.failing("could not copy the parts of the others"):
            self._copies.copy(memory[0], self._parts(window))
        return report

    def agree(self, opened: Iterable[Opened]) -> None:
        with self.failing("could not end the load"):
            super().agree(opened)
        self._exchange()

    def close(self) -> None:
        slots, self._slots, self._copies = self._slots, None, None
        _kept.append(slots)
        is_used = slots is not None and slots.unmap()
        if self._mesh.close() or not is_used:
            _kept.remove(slots)

    def _unmap(self) -> None:
        """Frees the slots."""
        if self._slots:
            self._slots.unmap()
        self._exchange()  # no process maps them any more
        self._slots = None

    def _exchange(self, own: bytes = b"") -> list[bytes]:
        with self.failing("was interrupted"):
            return self._mesh.exchange(own)

    @contextmanager
    def failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except PeerFailed as error:
            self._mesh.fail(error.why, error.rank)
            raise _of_another(error) from None
        except BaseException:
            self._mesh.fail(what)
            raise


def _of_another(error: PeerFailed) -> Error:
    """The error of a load whose peer failed."""
    cause = "; its own error has the cause" if error.why.startswith("could not") else ""
    text = f"cannot load the model: rank {error.rank} of the group {error.why}{cause}"
    return Error(errno.EIO, text)


def of(given: Any) -> Ranks:
    """The processes of a group of torch, or of an `OfHost`.

    Raises:
        forebay.Error: a process of the group did not begin the load in time, or has ended.
        forebay.Forked: the group is that of the parent of this process.
        ValueError: this process is not in the group.
    """
    of_host = isinstance(given, OfHost)
    listener, is_one_host = Listener(), True
    try:
        place = _Place(given.group if of_host else given)
        if place.size == 1:
            return Ranks()
        if of_host:
            found = place.of_host(given.model, listener.address)
            if len(found) == 1 or listener.address not in found.values():
                return Ranks()
        else:
            own = json.dumps([place.host, listener.address])
            about = {rank: json.loads(one) for rank, one in place.all("group", own).items()}
            found = {rank: address for rank, (_, address) in about.items()}
            is_one_host = all(other == place.host for other, _ in about.values())
            if not is_one_host:
                listener.close()
                listener = Listener(place.name())
                found = place.all("hosts", listener.address)
        mesh = listener.connect(found)
    except PeerFailed as error:
        raise _of_another(error) from None
    except RuntimeError as error:
        why = str(error).partition("\n")[0]
        text = f"cannot load the model: the store of the group failed: {why}"
        raise Error(errno.EIO, text) from None
    finally:
        listener.close()
    return Group(mesh, None if of_host else given, is_one_host)


class _Place:
    """The store of a group of torch, where its processes meet. A collective could not end early."""

    def __init__(self, group: Any) -> None:
        from torch import distributed

        self._rank, self.size = distributed.get_rank(group), distributed.get_world_size(group)
        if self._rank < 0:
            raise ValueError("this process is not in the `group`")
        if (group or distributed.group.WORLD) in _process.inherited:
            text = "this process was forked after its group was made; make a group in the child"
            raise Forked(errno.EPERM, f"cannot load the model: {text}")
        self._store = distributed.distributed_c10d._get_process_group_store(group)
        self._patience = _mesh.WAIT_MAX
        with suppress(AttributeError, IndexError, RuntimeError):  # of other backends
            of_torch = group or distributed.group.WORLD
            options = of_torch._get_backend(of_torch._device_types[0]).options
            self._patience = min(self._patience, options._timeout.total_seconds())
        self.host, own = host(), os.getpid()
        self._store.set(f"forebay/process/{self._rank}", json.dumps([self.host, own, begun(own)]))

    def _may_come(self, rank: int, anywhere: bool = True) -> bool:
        """Whether a process has not ended, and is of this host, as far as earlier loads show."""
        if not self._store.check([key := f"forebay/process/{rank}"]):
            return True
        its_host, pid, start = json.loads(self._store.get(key))
        return begun(pid) == start if its_host == self.host else anywhere

    def all(self, name: str, own: str) -> dict[int, str]:
        """What all processes of the group give, by rank."""
        is_over = lambda absent: not all(map(self._may_come, absent))
        found = self._met(name, own, self._patience, is_over)
        if absent := sorted({*range(self.size)} - {*found}):
            lost = [rank for rank in absent if not self._may_come(rank)]
            why = "were lost: their processes ended" if lost else "did not begin it in time, or failed"
            text = f"cannot load the model: the ranks {lost or absent} of the group {why}"
            raise Error(errno.ETIMEDOUT, text)
        return found

    def of_host(self, model: str, own: str) -> dict[int, str]:
        """What the processes of this host give that load a model within `PATIENCE` seconds."""
        may_come = partial(self._may_come, anywhere=False)
        is_over = lambda absent: not any(map(may_come, absent))
        found = self._met(f"{self.host}/{model}", own, PATIENCE, is_over)
        if absent := [one for one in range(self.size) if one not in found and may_come(one)]:
            text = f"forebay loads without the ranks {absent}, which did not load this model in time"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return found

    def name(self) -> str:
        """A name of this host for peers."""
        store: Any = self._store
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        try:
            return name_for(store.host, store.port)
        except (AttributeError, OSError):
            return socket.gethostname()

    def _met(
        self, name: str, own: str, patience: float, is_over: Callable[[set[int]], bool]
    ) -> dict[int, str]:
        """What the processes give that come within `patience` seconds, by rank.

        The first process that stops waiting decides for all which ones these are. Loads use the
        same keys of the store: their values begin with the number of the load.
        """
        store, key, found = self._store, f"forebay/{name}", {self._rank: own}

        def missing() -> set[int]:
            for rank in {*range(self.size)} - {*found}:
                if store.check([place := f"{key}/{rank}"]):
                    its_number, its_own = json.loads(store.get(place))
                    if its_number == number:
                        found[rank] = its_own
            return {*range(self.size)} - {*found}

        def decided() -> dict[int, str]:
            own = json.dumps([number, [*found.items()]])
            its_number, came = json.loads(store.compare_set(key, before, own))
            return dict(came) if its_number == number else {}

        with _turns[os.getpid(), id(store), key]:
            before = store.compare_set(key, "", "[0, []]").decode()
            number = json.loads(before)[0] + 1
            store.set(f"{key}/{self._rank}", json.dumps([number, own]))
            begun_at, says_after = time.monotonic(), _SILENT
            try:
                while absent := missing():
                    waited = time.monotonic() - begun_at
                    is_decided = store.get(key).decode() != before
                    if is_decided or waited > patience or is_over(absent):
                        break
                    if waited > says_after:
                        says_after = patience
                        text = f"waiting for the ranks {sorted(absent)} to begin a load"
                        log(logging.WARNING, _LOG, text)
                    time.sleep(min(0.005, waited / 10))
            except BaseException:
                del found[self._rank]
                with suppress(RuntimeError):  # of the store
                    decided()
                raise
            return decided()
