"""What a side is: something that brings a file's tensors to a device."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..model import Model

STATES = ("resident", "cold")
"""Whether the file is in the page cache when a load begins, or not."""


@dataclass
class Loaded:
    """What one load brought."""

    tensors: dict[str, Any]
    """By name; empty where a side moves bytes that are no file's."""
    nbytes: int
    keep: Any = None
    """What has to live as long as the tensors."""


class Side:
    """A library in one setting. A process has one side, so `load` may keep what it likes."""

    name = ""
    package = ""
    """What has to be installed, as pip calls it."""
    modules: tuple[str, ...] = ()
    """What has to be there to be imported."""
    needs_gpu = False
    needs_torch = True

    def __init__(
        self,
        setting: str = "default",
        *,
        states: tuple[str, ...] = STATES,
        variables: dict[str, str] | None = None,
    ) -> None:
        self.setting = setting
        self.states = states
        self.variables = variables or {}

    def available(self, device: str) -> str | None:
        """Why it cannot be measured here; `None` where it can."""
        for module in (*(("torch",) if self.needs_torch else ()), *self.modules):
            if not is_there(module):
                return f"`{module}` is not installed"
        if self.needs_gpu and device == "cpu":
            return "loads to a GPU only"
        return None

    def prepare(self, model: Model, folder: Path) -> Path:
        """The file that is loaded, converted into `folder` where the side has a format of its own.

        Runs once for all settings of a library, in a process of its own.
        """
        del folder
        return model.path

    @property
    def converts(self) -> bool:
        """Whether `prepare` has something to do."""
        return type(self).prepare is not Side.prepare

    def start(self, model: Model, device: str) -> None:
        """Imports what it needs; not part of any load."""
        del model, device
        for module in self.modules:
            importlib.import_module(module)

    def load(self, model: Model, path: Path, device: str) -> Loaded:
        """Loads everything: all is there when it has returned and the GPU has no work left."""
        raise NotImplementedError

    def tell(self, model: Model, path: Path, device: str) -> dict[str, Any]:
        """What it knows of how it loads; asked after all loads."""
        del model, path, device
        return {}


def is_there(module: str) -> bool:
    """Whether a module could be imported, without doing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def torch() -> Any:
    """Torch, where it is needed: not everything here needs it."""
    return importlib.import_module("torch")


_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}


def views(flat: Any, model: Model) -> dict[str, Any]:
    """Tensors within one flat tensor of the file's data: what a mover of bytes still has to do."""
    made = {}
    for tensor in model.tensors:
        part = flat[tensor.begin - model.begin : tensor.end - model.begin]
        dtype = getattr(torch(), _DTYPES.get(tensor.dtype, "uint8"))
        if (tensor.begin - model.begin) % dtype.itemsize:
            part = part.clone()  # a view of that type has to begin at a multiple of its size
        view = part.view(dtype)
        made[tensor.name] = view.view(tensor.shape) if tensor.dtype in _DTYPES else view
    return made
