"""Loads models: all tensors of all files at once."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from .. import _process
from ._frameworks import Framework, Torch
from ._frameworks import framework as chosen
from ._pages import mapped
from ._plan import Names, Opened, Part, Region, can_map, naming, opened, parts, region
from .._progress import Line
from ._ranks import AT_ONCE, Ranks, Wait, merged, ranks, result
from ._slices import Shard, of_shard

if TYPE_CHECKING:
    from .._forebay import Engine, File, ManyTransfer
    from typing import Unpack

    from .._types import Device, Load
    from ._files import Paths
    from ._header import Stored
    from ._slices import Index

Progress: TypeAlias = bool | Callable[[int, int], object]
"""``True`` shows a line on stderr; a function gets the bytes read so far and all bytes."""

_BACKENDS = ("mmap", "pread")
"""Those of safetensors."""

_LOOK = 0.1
"""Seconds between two reports of the progress."""

_CALL = 256 << 20
"""Bytes of whole files that the first call reads, or more. A later one reads more than all before.

A call starts before the next headers are read. Of the rate of `read_into`, a load of 8 GiB with
2,738 tensors in 16 files had 0.95 by such calls, 0.85 by calls of one file each, and 0.86 by a
single call (H100, 2026-11-26, ``462ab2c7``).
"""

_STEP = 256 << 20
"""Bytes of pages that are fetched between two reports of the progress."""

_CONVERTED = 32 << 20
"""Bytes of tensors that are read together, if they are converted. The next ones are read then."""


@dataclass(frozen=True, slots=True)
class _Call:
    """Tensors that are read by one call, or in a group by one after another.

    Attributes:
        parts: the tensors, and where in memory they go.
        memory: for each device that of the parts, joined by the call.
        nbytes: the length of all memory of a device.
        is_converted: whether the tensors are converted as soon as they have been read.
        tensors: for each device the tensors by name, views of the memory.
    """

    parts: list[Part]
    memory: list[Any]
    nbytes: int
    is_converted: bool
    tensors: list[dict[str, Any]] = field(default_factory=list)


@overload
def load_file(
    filename: Paths, device: list[Device], **options: Unpack[Load]
) -> list[dict[str, Any]]: ...


@overload
def load_file(
    filename: Paths, device: Device = None, **options: Unpack[Load]
) -> dict[str, Any]: ...


def load_file(
    filename: Paths,
    device: Device = None,
    *,
    backend: str = "mmap",
    names: Names = None,
    framework: str = "torch",
    dtype: Any = None,
    shard: Shard = None,
    rank: int | None = None,
    world_size: int | None = None,
    group: Any = None,
    copy: bool = False,
    progress: Progress = False,
    report: dict[str, Any] | None = None,
    engine: Engine | None = None,
) -> dict[str, Any] | list[dict[str, Any]]:
    """Loads the tensors of a model, all files at once; returns them by name.

    On a GPU the tensors of a file share one allocation, which is freed with the last of them. To
    keep only some, `clone` them, or use `iterate`.

    On the host the tensors are the pages of their files, mapped privately: loading a file that is
    in the page cache takes no time and no memory, and changing a tensor changes no file. Such a
    file has to stay as it is: bytes that another program writes may show in a tensor, and using a
    tensor of a file that was truncated ends the process (SIGBUS). With `dtype` that can happen
    during the load. `copy` avoids both.

    If a save replaces a model in several files meanwhile, the load is of the old one or the new one.

    Args:
        filename: a file of safetensors or of `torch.save` (``.pt``, ``.bin``), an ``.index.json``, a
            folder, a snapshot of the Hugging Face cache, or a list of these.
        device: the device of the tensors; by default (``auto``) torch's current GPU, or the host
            without one, for NumPy the host. A list of devices of torch gives each of them all
            tensors, and the result is a list of dictionaries. GPUs that copy to each other read a part of the bytes each, and get the
            rest from the others. The tensors of all files share one allocation then.
        backend: ``mmap``, or ``pread``, which is `copy`.
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
        copy: on the host, reads the tensors into memory of their own.
        progress: ``True`` for a line on stderr, or a function that gets the bytes read so far and
            all bytes.
        report: a dictionary that gets the routes of the bytes, as in `forebay.ManyResult.report`,
            and under ``metadata`` the strings that the files have under ``__metadata__``.
        engine: by default that of the process.

    Raises:
        FormatError: a file is of neither kind, is broken, or has a type that the framework does not
            have.
        KeyError: a tensor of the list `names` is in no file, or the pattern matches none.
        forebay.FileChanged: a file was written to during the load, or saves replaced the model
            again and again, or while the processes of a group opened it.
        forebay.OutOfMemory: a limit of the process has no room for the tensors.
        forebay.Error: a file cannot be opened or read.
    """
    copy |= checked(backend) == "pread"
    devices = device if isinstance(device, list) else [device]
    together = ranks(rank, world_size, group, shard, len(devices))
    # Pending reads are cancelled before the files are closed.
    with ExitStack() as files, ExitStack() as coming:
        coming.callback(together.close)
        loading = _Loading(engine or _process.default_engine(), together, devices, dtype, copy)
        loading.metadata = None if report is None else {}
        coming.callback(loading.cancel)
        found = loading.run(loading.plan(files, filename, names, framework, shard), progress)
    if report is not None:
        report |= found | {"metadata": loading.metadata}
    made = [{name: own[name] for name in loading.order} for own in loading.tensors]
    return made if isinstance(device, list) else made[0]


load_file.__module__ = "forebay"


def checked(backend: str) -> str:
    """One of safetensors' backends."""
    if backend not in _BACKENDS:
        raise ValueError(f"`backend` cannot be `{backend}`: it takes `mmap` or `pread`")
    return backend


class _Loading:
    """Calls that read a model, and its tensors by name.

    Calls for tensors that stay as they are start as soon as their files' headers have been read.
    Then others read some tensors each, which are converted and freed while the next call runs.
    Tensors that are the pages of a file are fetched last.
    """

    def __init__(
        self, engine: Engine, ranks: Ranks, devices: list[Device], dtype: Any, copy: bool
    ) -> None:
        self.tensors: list[dict[str, Any]] = [{} for _ in devices]
        self.order: list[str] = []
        self.metadata: dict[str, str] | None = None
        self._opened: list[Opened] = []
        self._is_copied = copy or not ranks.is_alone
        self._mapped: list[Part] = []
        self._engine = engine
        self._devices = devices
        self._kinds: list[Framework] = []
        self._ranks = ranks
        self._dtype = dtype
        self._to_convert: list[tuple[File, Stored, Index]] = []
        self._coming: deque[tuple[_Call, tuple[int, int], ManyTransfer]] = deque()
        self._total = self._finished = 0
        self._is_watched = False

    def plan(
        self,
        files: ExitStack,
        path: Paths,
        names: Names,
        framework: str,
        shard: Shard,
    ) -> Iterator[list[Part]]:
        """Opens the files, and plans calls for tensors that stay as they are."""
        with self._ranks.planning():
            self._kinds += (chosen(framework, device) for device in self._devices)
            kind = self._kinds[0]
            if len(self._kinds) > 1 and not isinstance(kind, Torch):
                raise ValueError('several devices need `framework="torch"`')
            if self._dtype is not None:
                self._dtype = kind.target(self._dtype)
            whole = [Part()]
            least = _CALL
            for one in opened(self._engine, path, names, files):
                self._opened.append(one)
                own = Part(pages=None if self._is_copied else mapped(one.file, kind))
                self._mapped.append(own)
                if whole[-1].tensors and not self._ranks.joins_files:
                    if whole[-1].end >= least and self._ranks.is_alone:
                        yield whole
                        least += whole[-1].end
                        whole = [Part()]
                    else:
                        whole.append(whole[-1].next())
                if self.metadata is not None:
                    self.metadata |= one.header.metadata() or {}
                for stored in one.tensors:
                    kind.check(stored)
                    self.order.append(stored.name)
                    index = of_shard(shard, stored)
                    wanted = region(stored, index)
                    joined = wanted if index is ... else region(stored, index, is_whole=True)
                    if can_map(own.pages, joined):
                        own.map(joined)
                    elif self._is_converted(wanted):
                        self._to_convert.append((one.file, stored, index))
                    else:
                        whole[-1].put(one.file, wanted)
        with self._ranks.planning(self._opened) as show:
            converted = [(stored.facts(), index) for _, stored, index in self._to_convert]
            placed = [(one.start, one.stored.facts()) for part in whole for one in part.tensors]
            show([placed, converted, str(self._dtype)])
        self._ranks = self._ranks.prepare(self._engine, self._kinds[0])
        yield whole

    def run(self, plan: Iterator[list[Part]], progress: Progress) -> dict[str, Any]:
        """Reads all tensors, and returns the report."""
        show = Line() if progress is True else progress or (lambda done, total: None)
        self._is_watched = bool(progress)
        wait = self._watched(show) if progress else result
        reports = []
        begun = time.monotonic()
        later: Iterator[tuple[_Call, tuple[int, int]]] = iter(())
        for whole in plan:
            if not any(part.tensors for part in whole) and self._ranks.is_alone:
                continue
            self._total += sum(part.nbytes for part in whole)
            later = self._windows(whole, is_converted=False)
            self._begin(later, AT_ONCE)
        calls = list(parts(self._to_convert, _CONVERTED))
        self._total += sum(part.nbytes for part in calls)
        self._total += sum(part.nbytes for part in self._mapped)
        later = chain(later, *(self._windows([part], is_converted=True) for part in calls))
        self._begin(later, AT_ONCE - len(self._coming))
        while self._coming:
            call, window, transfer = self._coming[0]
            with naming(call.parts):
                reports.append(self._ranks.finish(transfer, call.memory, window, wait))
            self._coming.popleft()
            self._finished += window[1] - window[0]
            self._begin(later, AT_ONCE - len(self._coming))
            if window[1] == call.nbytes:
                self._keep(call)
        reports += (self._fetched(part, show) for part in self._mapped if part.tensors)
        self._ranks.agree(self._opened)
        show(self._total, self._total)
        found = merged(reports)
        if len(reports) != 1 or len(self._kinds) > 1:
            found["seconds"]["elapsed"] = time.monotonic() - begun
        return found

    def _is_converted(self, wanted: Region) -> bool:
        """Whether a tensor is made from other memory than that which is read."""
        if self._dtype is not None and self._kinds[0].is_converted(wanted.stored, self._dtype):
            return True
        return wanted.strides is not None

    def _keep(self, call: _Call) -> None:
        """Makes the tensors of a call that has ended."""
        if not call.is_converted:
            for all_, new in zip(self.tensors, call.tensors, strict=True):
                all_ |= new
            return
        with self._ranks.planning():  # if one rank has no memory for it, all fail
            [part] = call.parts
            for all_, kind, memory in zip(self.tensors, self._kinds, call.memory, strict=True):
                all_.update(part.made(kind, memory, self._dtype))

    def _fetched(self, part: Part, show: Callable[[int, int], object]) -> dict[str, Any]:
        """Makes tensors of pages, and returns the report."""
        assert part.pages is not None, "mapped"
        begun, nbytes = time.monotonic(), 0
        with naming([part]):
            for begin, end in part.ranges(_STEP if self._is_watched else 1 << 62):
                part.pages.fetch(begin, end)
                nbytes += end - begin
                show(min(self._finished + nbytes, self._total), self._total)
        self._finished += nbytes
        self.tensors[0].update(part.made(self._kinds[0], part.pages.memory, self._dtype))
        seconds = {"elapsed": time.monotonic() - begun}
        route = {"route": "mapped", "reason": "pages of the page cache", "bytes": nbytes}
        return {"bytes": nbytes, "routes": [route], "seconds": seconds, "not_direct": None}

    def cancel(self) -> None:
        """Cancels pending reads."""
        for _, _, transfer in self._coming:
            transfer.cancel()

    def _windows(
        self, parts: list[Part], is_converted: bool
    ) -> Iterator[tuple[_Call, tuple[int, int]]]:
        """The pieces of a call's memory that are filled one after another."""
        with self._ranks.planning():
            rooms = [self._ranks.room(part.nbytes) for part in parts]
            memory = [[kind.memory(room) for room in rooms] for kind in self._kinds]
        joined = [own if len(own) > 1 else own[0] for own in memory]
        call, nbytes = _Call(parts, joined, sum(rooms), is_converted), sum(rooms)
        for window in self._ranks.windows(nbytes):
            yield call, window

    def _begin(self, later: Iterator[tuple[_Call, tuple[int, int]]], most: int) -> None:
        """Starts the next reads, and makes their tensors while they run."""
        for call, window in islice(later, max(most, 0)):
            requests = call.parts[0].requests
            started = self._ranks.start(self._engine, requests, call.memory, window)
            self._coming.append((call, window, started))
            if window[0] == 0 and not call.is_converted:
                own = map(self._views, self._kinds, repeat(call.parts), call.memory)
                call.tensors.extend(own)

    @staticmethod
    def _views(kind: Framework, parts: list[Part], memory: Any) -> dict[str, Any]:
        """The tensors of a device by name."""
        own = zip(parts, memory if len(parts) > 1 else [memory], strict=True)
        return dict(chain.from_iterable(part.made(kind, its) for part, its in own))

    def _watched(self, show: Callable[[int, int], object]) -> Wait:
        """Waits, and calls the callback from time to time."""

        def wait(transfer: ManyTransfer) -> dict[str, Any]:
            while True:
                try:
                    return transfer.result(_LOOK).report()
                except TimeoutError:
                    if transfer.done():
                        return transfer.result().report()  # the transfer itself may have timed out
                    show(self._done(), self._total)

        return wait

    def _done(self) -> int:
        """How many bytes have been read, including those of other ranks."""
        done = self._finished
        for _, (begin, end), transfer in self._coming:
            own, all_ = transfer.progress()
            done += (end - begin) * own // max(all_, 1)
        return min(done, self._total)
