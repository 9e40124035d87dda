"""Loads models: all tensors in one call."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from .. import _process
from ._frameworks import Framework
from ._frameworks import framework as chosen
from ._plan import Names, Part, opened
from ._ranks import Ranks, Wait, ranks, result
from ._slices import Shard, of_shard

if TYPE_CHECKING:
    from .._forebay import Engine, ManyTransfer
    from .._types import Device
    from ._files import Paths

Progress: TypeAlias = bool | Callable[[int, int], object]
"""``True`` shows a line on stderr; a function gets the bytes read so far and all bytes."""

_LOOK = 0.1
"""Seconds between two reports of the progress."""

_AT_ONCE = 2
"""Windows that are filled at once: one is read while the other is sent to other ranks."""


class _Window(NamedTuple):
    """A piece of a part's memory that one transfer fills."""

    part: Part
    memory: Any
    bounds: tuple[int, int]


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
        dtype: converts tensors of floating-point numbers to it.
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
        with together.planning() as show:
            kind = chosen(framework, device)
            engine = engine or _process.default_engine()
            loading = _Loading(engine, kind, together)
            coming.callback(loading.cancel)
            metadata: dict[str, str] = {}
            part = Part()
            for one in opened(engine, path, names):
                files.callback(one.file.close)
                metadata |= one.header.metadata or {}
                for stored in one.tensors:
                    part.add(one.file, stored, of_shard(shard, stored))
                if together.is_alone:
                    # Its bytes are read while the headers of later files are read.
                    loading.start(part)
                    part = Part()
            show(part.tensors)
        if not together.is_alone or not loading.tensors:
            loading.start(part)
        report = loading.finish(progress)
    loaded = Loaded(loading.tensors)
    loaded.metadata, loaded._report = metadata, report
    if dtype is not None:
        for name, tensor in loaded.items():
            loaded[name] = kind.converted(tensor, dtype)
    return loaded


class _Loading:
    """Parts of a model that are being read, and the tensors in their memory."""

    def __init__(self, engine: Engine, framework: Framework, ranks: Ranks) -> None:
        self.tensors: dict[str, Any] = {}
        self._engine = engine
        self._framework = framework
        self._ranks = ranks
        self._coming: deque[tuple[_Window, ManyTransfer]] = deque()
        self._later: Iterator[_Window] = iter(())
        self._total = self._finished = 0

    def start(self, part: Part) -> None:
        """Starts reading a part, and makes its tensors while it is read."""
        memory = self._framework.memory(self._ranks.room(part.nbytes))
        windows = (_Window(part, memory, one) for one in self._ranks.windows(len(memory)))
        for window in islice(windows, _AT_ONCE):
            self._begin(window)
        self._later = chain(self._later, windows)
        self._total += part.nbytes
        self.tensors.update(part.made(self._framework, memory))

    def finish(self, progress: Progress) -> dict[str, Any]:
        """Waits for all parts, and returns their report."""
        tell = _line if progress is True else progress or (lambda done, total: None)
        wait = self._watched(tell) if progress else result
        reports = []
        while self._coming:
            window, transfer = self._coming[0]
            reports.append(self._ranks.finish(transfer, window.memory, window.bounds, wait))
            self._coming.popleft()
            self._finished += window.bounds[1] - window.bounds[0]
            for window in islice(self._later, 1):
                self._begin(window)
        tell(self._total, self._total)
        return _merged(reports)

    def cancel(self) -> None:
        """Cancels pending reads."""
        for _, transfer in self._coming:
            transfer.cancel()

    def _begin(self, window: _Window) -> None:
        started = self._ranks.start(self._engine, window.part, window.memory, window.bounds)
        self._coming.append((window, started))

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
        for (_, _, (begin, end)), transfer in self._coming:
            own, all_ = transfer.progress()
            done += (end - begin) * own // max(all_, 1)
        return min(done, self._total)


def _merged(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """One report of several transfers."""
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


def _line(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r{done / 2**30:.2f} of {total / 2**30:.2f} GiB{end}")
    sys.stderr.flush()
