"""Processes of one host that each read a part of the bytes, and copy the rest from each other."""

from __future__ import annotations

import errno
import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from .._errors import RequestError
from .._mesh import Mesh, PeerFailed
from .._threads import log
from ._plan import ALIGNMENT
from ._ranks import AT_ONCE, CHUNK, Failed, Ranks, Wait, of_another, result
from ._shared import GpuMemory

if TYPE_CHECKING:
    from .._forebay import Engine, ManyTransfer
    from ._frameworks import Framework
    from ._plan import Opened
    from ._requests import Requests
    from ._shared import Memory

SLOTS = AT_ONCE + 1
"""Parts of windows in memory of their own: the others copy one while the next ones are read."""

_kept: list[object] = []
"""Memory that is never freed, since a process may still map it."""


class Near(Ranks):
    """Processes of one host: each byte is read once, and crosses one link to a GPU once.

    A process reads its part of a window into a slot that the others map, and says so. Then each
    copies all parts to their places. A slot is filled again when all processes have the next
    window. If one fails or ends, the others raise an error that names it.
    """

    joins_files = True
    at_once = AT_ONCE
    extra = SLOTS * CHUNK

    def __init__(self, mesh: Mesh, otherwise: Ranks, is_whole: bool) -> None:
        """`otherwise` loads if the processes share no memory, or unless `is_whole` no tensors."""
        super().__init__(mesh.rank, len(mesh.names))
        self._mesh, self._otherwise, self._is_whole = mesh, otherwise, is_whole
        self._plan = b""
        self._memory: Memory | None = None
        self._of_all: list[Any] = []
        self._started = self._finished = 0

    @contextmanager
    def planning(self, opened: Iterable[Opened] = ()) -> Iterator[Callable[[object], None]]:
        digest = sha256()
        with self._failing("could not start"):
            for stamp in dict.fromkeys(one.root for one in opened):
                stamp.check_place()
                digest.update(repr(stamp.identity()).encode())
            yield lambda plan: digest.update(repr(plan).encode())
        self._plan = digest.digest()
        self._exchange()

    def prepare(self, engine: Engine, kind: Framework) -> Ranks:
        found = self._exchange(self._plan)
        other = next((rank for rank, plan in enumerate(found) if plan != self._plan), None)
        if other is not None and self._is_whole:
            both = sorted(self._mesh.names[rank] for rank in (self._rank, other))
            ours = "the ranks {} and {} of the group load different tensors".format(*both)
            raise RequestError(errno.EINVAL, f"cannot load the model: {ours}")
        handle, why = "", "" if other is None else "it loads different tensors"
        try:
            if other is None:
                self._memory = kind.shared(engine, SLOTS * CHUNK)
                handle = self._memory.handle
        except Exception as error:
            why = str(error)
        handles = [other.decode() for other in self._exchange(handle.encode())]
        try:
            if (memory := self._memory) and all(handles):
                self._of_all = [
                    memory.own if rank == self._rank else memory.map(handle)
                    for rank, handle in enumerate(handles)
                ]
        except Exception as error:
            why = str(error)
        reason = ascii(why)[1:-1][:1000] if why else ""
        reasons = [other.decode() for other in self._exchange(reason.encode())]
        if not any(reasons):
            return self
        if self._rank == 0:
            rank, reason = next(one for one in enumerate(reasons) if one[1])
            who = f"rank {self._mesh.names[rank]} of the group"
            text = f"forebay: each rank reads the whole model, because of {who}: {reason}"
            if self._is_whole:
                log(logging.WARNING, "forebay.safetensors", text)
            else:
                warnings.warn(text, RuntimeWarning, stacklevel=2)
        self._of_all.clear()
        self._exchange()  # no process maps the memory any more
        self.close()
        return self._otherwise

    def windows(self, room: int) -> Iterator[tuple[int, int]]:
        step = self._size * CHUNK
        for begin in range(0, max(room, 1), step):
            yield begin, min(begin + step, room)

    def _part(self, window: tuple[int, int], rank: int) -> tuple[int, int]:
        begin, end = window
        own = -(-(end - begin) // (self._size * ALIGNMENT)) * ALIGNMENT
        return min(begin + rank * own, end), min(begin + (rank + 1) * own, end)

    def start(
        self, engine: Engine, requests: Requests, memory: list[Any], window: tuple[int, int]
    ) -> ManyTransfer:
        assert self._memory, "prepared"
        slot = self._started % SLOTS * CHUNK
        self._started += 1
        begin, end = self._part(window, self._rank)
        try:
            return requests.cut(begin, end).moved(slot - begin).start(engine, self._memory.own)
        except Exception as error:
            return cast("ManyTransfer", Failed(error))

    def finish(
        self,
        transfer: ManyTransfer,
        memory: list[Any],
        window: tuple[int, int],
        wait: Wait = result,
    ) -> dict[str, Any]:
        assert self._memory, "prepared"
        with self._failing("could not read its part"):
            report = wait(transfer)
        self._exchange()
        slot = self._finished % SLOTS * CHUNK
        self._finished += 1
        with self._failing("could not copy the parts of others"):
            for step in range(self._size):  # each begins with another one
                rank = (self._rank + step) % self._size
                begin, end = self._part(window, rank)
                memory[0][begin:end] = self._of_all[rank][slot : slot + end - begin]
            self._memory.synchronize()
        return report

    def close(self) -> None:
        memory, self._memory = self._memory, None
        _kept.append(memory)
        if memory:
            memory.synchronize()
        self._of_all.clear()
        if self._mesh.close() or not isinstance(memory, GpuMemory):
            _kept.remove(memory)

    def _exchange(self, own: bytes = b"") -> list[bytes]:
        try:
            return self._mesh.exchange(own)
        except PeerFailed as error:
            self._mesh.fail(error.why, error.rank)
            raise of_another(error.rank, error.why) from None

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Says what failed to the other processes, if the block does."""
        try:
            yield
        except BaseException:
            self._mesh.fail(what)
            raise
