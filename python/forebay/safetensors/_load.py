"""Loads models: all tensors in one call."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import _process
from .._errors import TimedOut
from ._frameworks import framework as chosen
from ._plan import Names, Part, opened
from ._slices import Shard, of_shard

if TYPE_CHECKING:
    from .._forebay import Engine, ManyTransfer
    from .._types import Device
    from ._files import Paths

Progress: TypeAlias = bool | Callable[[int, int], object]
"""``True`` shows a line on stderr; a function is called with the bytes that came and all bytes."""

_LOOK = 0.1
"""Seconds between two looks at the progress."""


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
    progress: Progress = False,
    engine: Engine | None = None,
) -> Loaded:
    """Loads the tensors of a model, all files in one call.

    The tensors share one allocation, which is freed with the last of them: `clone` one that is to
    outlive the others, or use `iterate`.

    Args:
        path: a ``.safetensors`` file, an ``.index.json``, a folder, a snapshot of the Hugging Face
            cache, or a list of these.
        device: where the tensors lie; by default torch's current GPU, and the host for NumPy.
        names: which tensors: a list, a pattern such as ``model.layers.*``, or a function that is
            called with a name. By default all.
        framework: ``torch`` or ``numpy``.
        dtype: converts tensors of floating-point numbers to it.
        shard: the share of each tensor that is read: ``(dimension, rank, size)``, or a function of
            a name and a shape that returns that, an index such as ``(slice(0, 8),)``, or ``None``
            for the whole tensor.
        progress: ``True`` for a line on stderr, or a function that is called with the bytes that
            have come and with all bytes.
        engine: by default the one of the process.

    Raises:
        FormatError: a file is no safetensors file, or has a type that the framework does not have.
        KeyError: a tensor of `names` is in no file.
        forebay.Error: a file cannot be opened or read.
    """
    kind = chosen(framework, device)
    engine = engine or _process.default_engine()
    loaded = Loaded()
    loaded.metadata = {}
    part = Part()
    with ExitStack() as stack:
        for one in opened(engine, path, names):
            stack.callback(one.file.close)
            loaded.metadata |= one.header.metadata or {}
            for stored in one.tensors:
                part.add(one.file, stored, of_shard(shard, stored))
        memory = kind.memory(part.nbytes)
        loaded._report = _waited(part.start(engine, memory), progress)
    for name, tensor in part.made(kind, memory):
        loaded[name] = tensor if dtype is None else kind.converted(tensor, dtype)
    return loaded


def _waited(transfer: ManyTransfer, progress: Progress) -> dict[str, Any]:
    if progress is False:
        return transfer.result().report()
    return _watched(transfer, _line if progress is True else progress)


def _watched(transfer: ManyTransfer, tell: Callable[[int, int], object]) -> dict[str, Any]:
    """Waits, and calls `tell` now and then."""
    while True:
        try:
            done = transfer.result(_LOOK)
        except TimedOut:
            if transfer.done():
                raise  # it is the transfer's own
            tell(*transfer.progress())
        except BaseException:
            transfer.cancel()
            raise
        else:
            tell(*transfer.progress())
            return done.report()


def _line(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r{done / 2**30:.2f} of {total / 2**30:.2f} GiB{end}")
    sys.stderr.flush()
