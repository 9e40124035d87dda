"""The metadata of a checkpoint, which torch pickles: nothing in it runs here."""

from __future__ import annotations

import errno
import io
import pathlib
import pickle
import pickletools
from typing import Any, NoReturn

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed.checkpoint as dcp  # type: ignore[import-not-found,unused-ignore]

from ..._errors import of_system, shown
from ...safetensors import FormatError
from ._item import TRUST
from ._numbers import MADE


def read(path: str) -> dcp.metadata.Metadata:
    """Reads a file of metadata.

    Raises:
        FormatError: it is invalid, or has objects of classes that could run code.
    """
    try:
        content = pathlib.Path(path).read_bytes()
    except OSError as error:
        hint = "give the folder of a checkpoint that was saved completely"
        raise of_system(error, f"cannot load `{shown(path)}`", path, hint) from error
    try:
        _refuse_memo(content)
        found = _Unpickler(io.BytesIO(content)).load()
    except Exception as error:  # a pickle can raise any
        _refuse(path, str(error), error)
    if not (
        isinstance(found, dcp.metadata.Metadata)
        and isinstance(getattr(found, "state_dict_metadata", None), dict)
        and isinstance(getattr(found, "storage_data", None), dict)
    ):
        _refuse(path, "it is not the metadata of a checkpoint", None)
    return found


def _refuse_memo(content: bytes) -> None:
    """Refuses places in the memo beyond all objects: `pickle` allocates memory up to them."""
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name in ("PUT", "LONG_BINPUT") and int(argument or 0) > len(content):
            raise pickle.UnpicklingError(f"it has more than {argument} objects by their numbers")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if made := _made(module, name):
            # A pickle may set attributes of a class that it names: this class is for one pickle.
            return type(name, (), {"__new__": lambda _: object.__new__(made)})
        if called := _CALLED.get((module, name)):
            return lambda *given: called(*given)  # it may set attributes of functions as well
        value = getattr(torch, name, None) if module == "torch" else None
        if isinstance(value, torch.dtype):
            return value
        for safe in torch.serialization.get_safe_globals():
            known, title = safe if isinstance(safe, tuple) else (safe, None)
            if known.__module__.startswith("torch."):
                continue  # torch's own list has classes that contact other processes when made
            if (title or f"{known.__module__}.{known.__qualname__}") == f"{module}.{name}":
                return known
        raise pickle.UnpicklingError(f"it has a `{module}.{name}`, which may run code")


_CLASSES = {
    "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties",
    "ChunkStorageMetadata", "MetadataIndex", "StorageMeta",
}

_HERE = "torch.distributed.checkpoint"


def _made(module: str, name: str) -> Any:
    """A class whose objects are data."""
    if module == f"{_HERE}.metadata" and name in _CLASSES:
        return getattr(dcp.metadata, name)
    is_info = (module, name) == (f"{_HERE}.filesystem", "_StorageInfo")
    return dcp.filesystem._StorageInfo if is_info else None


def _path(*parts: str) -> pathlib.PurePath:
    return pathlib.Path(*parts)


_CALLED = {
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): lambda name: torch.serialization._get_layout(name),
    (f"{_HERE}.metadata", "_MEM_FORMAT_ENCODING"): lambda n: dcp.metadata._MEM_FORMAT_ENCODING(n),
    ("collections", "OrderedDict"): dict,
    ("builtins", "set"): set,
    ("pathlib", "PosixPath"): _path,
    ("pathlib._local", "PosixPath"): _path,
    **{tuple(name.rsplit(".", 1)): made for name, made in MADE.items()},
}


def _refuse(path: str, why: str, error: Exception | None) -> NoReturn:
    made = FormatError(errno.EINVAL, f"cannot load `{shown(path)}`: {why[:200]}", path)
    made.hint = TRUST
    raise made from error
