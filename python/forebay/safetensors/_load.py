"""Loads models: all tensors in one call."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import _process
from .._errors import TimedOut
from ._frameworks import framework as chosen
from ._plan import Names, Part, opened
from ._ranks import Ranks, Wait, ranks, result
from ._slices import Shard, of_shard

if TYPE_CHECKING:
    from .._forebay import Engine, ManyTransfer
    from .._types import Device
    from ._files import Paths

Progress: TypeAlias = bool | Callable[[int, int], object]
"""``True`` shows a line on stderr; a function is called with the bytes that came and all bytes."""

_LOOK = 0.1
"""Seconds between two looks at the progress."""

_AT_ONCE = 2
"""Windows that are filled at once: one is read while the other goes to the other ranks."""


class Loaded(dict[str, Any]):
    """Tensors by name, in the order of their files.

    Attributes:
        metadata: the texts that the files have under ``__metadata__``.
    """

    metadata: dict[str, str]
    _report: dict[str, Any]

    def report(self) -> dict[str, Any]:
        """Which way the bytes went: as `forebay.ManyResult.report`."""
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
    """Loads the tensors of a model, all files in one call.

    The tensors share one allocation, which is freed with the last of them: `clone` one that is to
    outlive the others, or use `iterate`.

    Args:
        path: a file of safetensors or of `torch.save` (``.pt``, ``.bin``), an ``.index.json``, a
            folder, a snapshot of the Hugging Face cache, or a list of these.
        device: where the tensors lie; by default torch's current GPU, and the host for NumPy.
        names: which tensors: a list, a pattern such as ``model.layers.*``, or a function that is
            called with a name. By default all.
        framework: ``torch`` or ``numpy``.
        dtype: converts tensors of floating-point numbers to it.
        shard: the share of each tensor that is read: ``(dimension, rank, size)``, or a function of
            a name and a shape that returns that, an index such as ``(slice(0, 8),)``, or ``None``
            for the whole tensor.
        rank: of several processes of this machine that load the same files at once, the number of
            this one, with `world_size`: all read through the page cache, each from another place
            on, so that the drive is read once.
        world_size: how many such processes there are.
        group: a group of `torch.distributed`: each of its processes reads its part of the bytes,
            and all get all of them. All make the same call. They may run on several machines.
        progress: ``True`` for a line on stderr, or a function that is called with the bytes that
            have come and with all bytes.
        engine: by default the one of the process.

    Raises:
        FormatError: a file is of neither kind, is broken, or has a type that the framework does not
            have.
        KeyError: a tensor of `names` is in no file.
        forebay.Error: a file cannot be opened or read.
    """
    together = ranks(rank, world_size, group, shard)
    loaded = Loaded()
    loaded.metadata = {}
    part = Part()
    with ExitStack() as stack:
        with together.planning() as show:
            kind = chosen(framework, device)
            engine = engine or _process.default_engine()
            for one in opened(engine, path, names):
                stack.callback(one.file.close)
                loaded.metadata |= one.header.metadata or {}
                for stored in one.tensors:
                    part.add(one.file, stored, of_shard(shard, stored))
            memory = kind.memory(together.room(part.nbytes))
            show(part.tensors)
        loaded._report = _filled(engine, part, memory, together, progress)
    for name, tensor in part.made(kind, memory):
        loaded[name] = tensor if dtype is None else kind.converted(tensor, dtype)
    return loaded


def _filled(
    engine: Engine, part: Part, memory: Any, together: Ranks, progress: Progress
) -> dict[str, Any]:
    """Fills the memory, window by window, and returns the report of it."""
    tell = _line if progress is True else progress or (lambda done, total: None)
    coming: deque[tuple[tuple[int, int], ManyTransfer]] = deque()
    reports: list[dict[str, Any]] = []

    def finish() -> None:
        window, transfer = coming[0]
        wait = _watched(tell, window, part.nbytes) if progress else result
        reports.append(together.finish(transfer, memory, window, wait))
        coming.popleft()

    try:
        for window in together.windows(len(memory)):
            coming.append((window, together.start(engine, part, memory, window)))
            if len(coming) == _AT_ONCE:
                finish()
        while coming:
            finish()
    except BaseException:
        for _, transfer in coming:
            transfer.cancel()
        raise
    tell(part.nbytes, part.nbytes)
    return _merged(reports)


def _watched(tell: Callable[[int, int], object], window: tuple[int, int], total: int) -> Wait:
    """Waits, and calls `tell` now and then."""

    def wait(transfer: ManyTransfer) -> dict[str, Any]:
        while True:
            try:
                return transfer.result(_LOOK).report()
            except TimedOut:
                if transfer.done():
                    return transfer.result().report()  # it may have timed out itself
                done, own = transfer.progress()
                tell(window[0] + (window[1] - window[0]) * done // max(own, 1), total)

    return wait


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
