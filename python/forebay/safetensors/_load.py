"""Loads models: all tensors of all files at once."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import _process
from ._frameworks import Framework
from ._frameworks import framework as chosen
from ._plan import Names, Part, naming, opened, parts
from ._ranks import Ranks, Wait, ranks, result
from ._slices import Shard, of_shard

if TYPE_CHECKING:
    from .._forebay import Engine, File, ManyTransfer
    from .._types import Device
    from ._files import Paths
    from ._header import Stored
    from ._slices import Index

Progress: TypeAlias = bool | Callable[[int, int], object]
"""``True`` shows a line on stderr; a function gets the bytes read so far and all bytes."""

_LOOK = 0.1
"""Seconds between two reports of the progress."""

_AT_ONCE = 2
"""Windows that are filled at once: one is read while the other is sent to other ranks."""

_CALL = 256 << 20
"""Bytes of whole files that the first call reads, or more. A later one reads more than all before.

A call starts before the next headers are read. Of the rate of `read_into`, a load of 8 GiB with
2,738 tensors in 16 files had 0.95 by such calls, 0.85 by calls of one file each, and 0.86 by a
single call (``benches/runs/2026-11-26-h100-calls``).
"""

_CONVERTED = 32 << 20
"""Bytes of tensors that are read together, if they are converted. The next ones are read then."""


@dataclass(frozen=True, slots=True)
class _Call:
    """Tensors that are read by one call, or in a group by one after another.

    Attributes:
        parts: the tensors, and where in memory they go.
        memory: that of the parts, joined by the call.
        nbytes: the length of all memory.
        is_converted: whether the tensors are converted as soon as they have been read.
        tensors: the tensors by name, views of the memory.
    """

    parts: list[Part]
    memory: Any
    nbytes: int
    is_converted: bool
    tensors: dict[str, Any] = field(default_factory=dict)


class Loaded(dict[str, Any]):
    """Tensors by name, in the order of their files.

    Attributes:
        metadata: the strings that the files have under ``__metadata__``.
    """

    metadata: dict[str, str]
    _report: dict[str, Any]

    def report(self) -> dict[str, Any]:
        """The routes of the bytes, as in `forebay.ManyResult.report`."""
        return self._report


def load_file(
    path: Paths,
    device: Device = None,
    *,
    names: Names = None,
    framework: str = "torch",
    dtype: Any = None,
    shard: Shard = None,
    rank: int | None = None,
    world_size: int | None = None,
    group: Any = None,
    progress: Progress = False,
    engine: Engine | None = None,
) -> Loaded:
    """Loads the tensors of a model, all files at once.

    The tensors of a file share one allocation, which is freed with the last of them. To keep only
    some, `clone` them, or use `iterate`.

    Args:
        path: a file of safetensors or of `torch.save` (``.pt``, ``.bin``), an ``.index.json``, a
            folder, a snapshot of the Hugging Face cache, or a list of these.
        device: the device of the tensors; by default torch's current GPU, for NumPy the host.
        names: which tensors: a list, a pattern such as ``model.layers.*``, or a function of a
            name. By default all.
        framework: ``torch`` or ``numpy``.
        dtype: converts tensors of floating-point numbers to it, except packed ones of 4 bits.
        shard: the share of each tensor that is read: ``(dimension, rank, size)``, or a function of
            a name and a shape that returns that, an index such as ``(slice(0, 8),)``, or ``None``
            for the whole tensor.
        rank: the number of this process, if several of this machine load the same files at once;
            requires `world_size`. All read through the page cache, each starting at another
            place, so that the drive is read once.
        world_size: the number of these processes.
        group: a group of `torch.distributed`: each of its processes reads a part of the bytes, and
            gets the rest from the others. All make the same call. They may run on several
            machines.
        progress: ``True`` for a line on stderr, or a function that gets the bytes read so far and
            all bytes.
        engine: by default that of the process.

    Raises:
        FormatError: a file is of neither kind, is broken, or has a type that the framework does not
            have.
        KeyError: a tensor of the list `names` is in no file, or the pattern matches none.
        forebay.Error: a file cannot be opened or read.
    """
    together = ranks(rank, world_size, group, shard)
    # Pending reads are cancelled before the files are closed.
    with ExitStack() as files, ExitStack() as coming:
        loading = _Loading(engine or _process.default_engine(), together, dtype)
        coming.callback(loading.cancel)
        report = loading.run(loading.plan(files, path, names, framework, device, shard), progress)
    loaded = Loaded((name, loading.tensors[name]) for name in loading.order)
    loaded.metadata, loaded._report = loading.metadata, report
    return loaded


class _Loading:
    """Calls that read a model, and its tensors by name.

    Calls for tensors that stay as they are start as soon as their files' headers have been read.
    Then others read some tensors each, which are converted and freed while the next call runs.
    """

    def __init__(self, engine: Engine, ranks: Ranks, dtype: Any) -> None:
        self.tensors: dict[str, Any] = {}
        self.order: list[str] = []
        self.metadata: dict[str, str] = {}
        self._engine = engine
        self._framework: Framework
        self._ranks = ranks
        self._dtype = dtype
        self._to_convert: list[tuple[File, Stored, Index]] = []
        self._coming: deque[tuple[_Call, tuple[int, int], ManyTransfer]] = deque()
        self._total = self._finished = 0

    def plan(
        self,
        files: ExitStack,
        path: Paths,
        names: Names,
        framework: str,
        device: Device,
        shard: Shard,
    ) -> Iterator[list[Part]]:
        """Opens the files, and plans calls for tensors that stay as they are."""
        with self._ranks.planning() as show:
            kind = self._framework = chosen(framework, device)
            if self._dtype is not None:
                self._dtype = kind.target(self._dtype)
            whole = [Part()]
            least = _CALL
            for one in opened(self._engine, path, names):
                files.callback(one.file.close)
                if whole[-1].tensors and not self._ranks.joins_files:
                    if whole[-1].end >= least and self._ranks.is_alone:
                        yield whole
                        least += whole[-1].end
                        whole = [Part()]
                    else:
                        whole.append(whole[-1].next())
                self.metadata |= one.header.metadata or {}
                for stored in one.tensors:
                    kind.check(stored)
                    self.order.append(stored.name)
                    index = of_shard(shard, stored)
                    if self._dtype is not None and kind.is_converted(stored, self._dtype):
                        self._to_convert.append((one.file, stored, index))
                    else:
                        whole[-1].add(one.file, stored, index)
            converted = [(stored, index) for _, stored, index in self._to_convert]
            show([*(part.tensors for part in whole), converted, str(self._dtype)])
        yield whole

    def run(self, plan: Iterator[list[Part]], progress: Progress) -> dict[str, Any]:
        """Reads all tensors, and returns the report."""
        tell = _line if progress is True else progress or (lambda done, total: None)
        wait = self._watched(tell) if progress else result
        reports = []
        begun = time.monotonic()
        later: Iterator[tuple[_Call, tuple[int, int]]] = iter(())
        for whole in plan:
            self._total += sum(part.nbytes for part in whole)
            later = self._windows(whole, is_converted=False)
            self._begin(later, _AT_ONCE)
        calls = list(parts(self._to_convert, _CONVERTED))
        self._total += sum(part.nbytes for part in calls)
        later = chain(later, *(self._windows([part], is_converted=True) for part in calls))
        while self._coming:
            call, window, transfer = self._coming[0]
            with naming(call.parts):
                reports.append(self._ranks.finish(transfer, call.memory, window, wait))
            self._coming.popleft()
            self._finished += window[1] - window[0]
            self._begin(later, _AT_ONCE - len(self._coming))
            if window[1] == call.nbytes:
                self.tensors |= self._converted(call.tensors) if call.is_converted else call.tensors
        tell(self._total, self._total)
        return _merged(reports, time.monotonic() - begun)

    def cancel(self) -> None:
        """Cancels pending reads."""
        for _, _, transfer in self._coming:
            transfer.cancel()

    def _windows(
        self, parts: list[Part], is_converted: bool
    ) -> Iterator[tuple[_Call, tuple[int, int]]]:
        """The pieces of a call's memory that are filled one after another."""
        with self._ranks.planning():
            memory = [self._framework.memory(self._ranks.room(one.nbytes)) for one in parts]
        nbytes, joined = sum(map(len, memory)), memory if len(memory) > 1 else memory[0]
        call = _Call(parts, joined, nbytes, is_converted)
        for window in self._ranks.windows(nbytes):
            yield call, window

    def _begin(self, later: Iterator[tuple[_Call, tuple[int, int]]], most: int) -> None:
        """Starts the next reads, and makes their tensors while they run."""
        for call, window in islice(later, max(most, 0)):
            requests = call.parts[0].requests
            started = self._ranks.start(self._engine, requests, call.memory, window)
            self._coming.append((call, window, started))
            if window[0] == 0:
                memory = call.memory if len(call.parts) > 1 else [call.memory]
                for part, own in zip(call.parts, memory, strict=True):
                    call.tensors.update(part.made(self._framework, own))

    def _converted(self, tensors: dict[str, Any]) -> dict[str, Any]:
        with self._ranks.planning():  # if one rank has no memory for it, all fail
            converted = self._framework.converted
            return {name: converted(tensor, self._dtype) for name, tensor in tensors.items()}

    def _watched(self, tell: Callable[[int, int], object]) -> Wait:
        """Waits, and calls the callback from time to time."""

        def wait(transfer: ManyTransfer) -> dict[str, Any]:
            while True:
                try:
                    return transfer.result(_LOOK).report()
                except TimeoutError:
                    if transfer.done():
                        return transfer.result().report()  # the transfer itself may have timed out
                    tell(self._done(), self._total)

        return wait

    def _done(self) -> int:
        """How many bytes have been read, including those of other ranks."""
        done = self._finished
        for _, (begin, end), transfer in self._coming:
            own, all_ = transfer.progress()
            done += (end - begin) * own // max(all_, 1)
        return min(done, self._total)


def _merged(reports: list[dict[str, Any]], elapsed: float) -> dict[str, Any]:
    """One report of several transfers, which may run at the same time."""
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
    if others:
        first["seconds"]["elapsed"] = elapsed
    return first


def _line(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r{done / 2**30:.2f} of {total / 2**30:.2f} GiB{end}")
    sys.stderr.flush()
