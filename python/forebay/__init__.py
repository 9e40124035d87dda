"""Moves bytes between files and GPU memory as fast as the hardware allows.

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

from . import _errors
from ._errors import *
from ._errors import publish
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
    from . import blocks as blocks
    from . import kvikio as kvikio
    from . import safetensors as safetensors
    from . import stream as stream
    from . import torch as torch
    from .safetensors import load_into, save_file, save_sharded
    from .safetensors._load import load_file

__version__ = version()

__all__ = [
    *_errors.__all__,
    "Buffer",
    "Durations",
    "Engine",
    "File",
    "ManyResult",
    "ManyTransfer",
    "RawFile",
    "Report",
    "Statistics",
    "Transfer",
    "__version__",
    "bench",
    "default_engine",
    "doctor",
    "load_file",
    "load_into",
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


_MODULES = ("blocks", "kvikio", "safetensors", "stream", "torch")
"""The parts that are imported on first use."""

if not typing.TYPE_CHECKING:  # a checker would take any name

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _MODULES:
            try:
                return import_module(f".{name}", __name__)
            except ImportError as error:
                text = f"`forebay.{name}` cannot be imported: {error}"
                raise AttributeError(text, name=name) from error
        if name == "load_file":
            return import_module(".safetensors._load", __name__).load_file
        if name in ("load_into", "save_file", "save_sharded"):
            return getattr(import_module(".safetensors", __name__), name)
        text = f"module `forebay` has no attribute `{name}`: `dir(forebay)` lists them"
        raise AttributeError(text, name=name)


def __dir__() -> list[str]:
    return [*__all__, *(name for name in _MODULES if name != "torch")]  # imported by `help`


publish(__name__, vars())
del annotations, publish, typing
