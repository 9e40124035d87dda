"""Moves bytes between files and GPU memory at the speed of the slowest link on the way.

>>> import forebay
>>> tensors = forebay.load_file("model.safetensors", device="cpu")
>>> with forebay.open("model.safetensors") as file:
...     weights = bytearray(file.size)
...     file.read_into(weights)
4194304

Targets and sources are contiguous memory: tensors and arrays on a GPU or on the host, buffers, or
``(address, length, device)``. ``help(forebay.File)`` describes the calls.
"""

from __future__ import annotations

import typing

from ._errors import (
    Cancelled,
    DeviceError,
    EndOfFile,
    Error,
    FileChanged,
    FileTruncated,
    Forked,
    NoDevice,
    OutOfMemory,
    RequestError,
    RouteUnavailable,
    TimedOut,
)
from ._forebay import Buffer, Engine, File, ManyResult, ManyTransfer, Transfer, version
from ._process import (
    default_engine,
    open,
    read,
    read_many,
    start_read_many,
    start_write_many,
    write_many,
)
from ._raw import RawFile
from ._statistics import Durations, Statistics
from ._tools import Report, bench, doctor, map

if typing.TYPE_CHECKING:
    from .safetensors import save_sharded
    from .safetensors._load import load_file
    from .safetensors._save import save_file

__version__ = version()

__all__ = [
    "Buffer",
    "Cancelled",
    "DeviceError",
    "Durations",
    "EndOfFile",
    "Engine",
    "Error",
    "File",
    "FileChanged",
    "FileTruncated",
    "Forked",
    "ManyResult",
    "ManyTransfer",
    "NoDevice",
    "OutOfMemory",
    "RawFile",
    "Report",
    "RequestError",
    "RouteUnavailable",
    "Statistics",
    "TimedOut",
    "Transfer",
    "__version__",
    "bench",
    "default_engine",
    "doctor",
    "load_file",
    "map",
    "open",
    "read",
    "read_many",
    "save_file",
    "save_sharded",
    "start_read_many",
    "start_write_many",
    "write_many",
]


if not typing.TYPE_CHECKING:  # a checker would take any name

    def __getattr__(name: str) -> object:
        """Imports the functions for models on first use."""
        if name in ("load_file", "save_file", "save_sharded"):
            from .safetensors import _load, _save, save_sharded

            found = {"load_file": _load.load_file, "save_file": _save.save_file}
            return found.get(name, save_sharded)
        if name in ("blocks", "kvikio", "safetensors", "stream", "torch"):
            hint = f"call `import forebay.{name}` first"
        else:
            hint = "`dir(forebay)` lists them"
        raise AttributeError(f"module `forebay` has no attribute `{name}`: {hint}", name=name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
