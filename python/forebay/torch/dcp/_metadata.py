"""The metadata of a checkpoint, which torch pickles: nothing in it runs here.

The pickle is looked through first. Then its objects are made as `_Blank`, which only keep what the
pickle says. Torch's own objects are made of these once their fields have been checked, so that no
pickle changes an object, class or enumeration of the process.
"""

from __future__ import annotations

import enum
import errno
import io
import os
import pathlib
import pickle
from typing import Any, NoReturn, TypeVar

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed.checkpoint as dcp  # type: ignore[import-not-found,unused-ignore]

from ... import _forebay
from ..._errors import Error, shortened, shown
from ...safetensors import FormatError
from ...safetensors._files import small_file
from ._item import TRUST
from ._numbers import MADE

_HERE = "torch.distributed.checkpoint"

_HINT = "give the folder of a checkpoint that was saved completely"

T = TypeVar("T")


def read(path: str) -> dcp.metadata.Metadata:
    """Reads a file of metadata.

    Raises:
        FormatError: it is invalid, or has objects of classes that could run code.
    """
    try:
        content = small_file(path)
    except FormatError:
        raise
    except Error as error:
        error.hint = _HINT
        raise
    try:
        safe = _safe()
        changed = {name for name, kind in safe.items() if not _is_shared(kind)}
        _forebay.scan_pickle(content, len(content), changed | {*_BLANKS, *MADE})
        found = _Unpickler(io.BytesIO(content), safe).load()
        if not isinstance(found, _Blank) or found.name != f"{_HERE}.metadata.Metadata":
            raise _Refused("it is not the metadata of a checkpoint")
        return _metadata(found)
    except Exception as error:  # a pickle can raise any
        _refuse(path, error)


class _Refused(Exception):
    """The reason why metadata is broken."""


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: io.BytesIO, safe: dict[str, Any]) -> None:
        super().__init__(content)
        self._safe = safe

    def find_class(self, module: str, name: str) -> Any:
        title = f"{module}.{name}"
        if made := _BLANKS.get(title) or _CALLED.get(title) or self._safe.get(title):
            return made
        value = getattr(torch, name, None) if module == "torch" else None
        if isinstance(value, torch.dtype):
            return value
        raise pickle.UnpicklingError(f"it has a `{shortened(title)}`, which may run code")


def _safe() -> dict[str, Any]:
    """The classes and functions that the program has allowed, by their names."""
    found = {}
    for one in torch.serialization.get_safe_globals():
        known, title = one if isinstance(one, tuple) else (one, None)
        # torch's own list has classes that contact other processes when they are made.
        if not known.__module__.startswith("torch."):
            found[title or f"{known.__module__}.{known.__qualname__}"] = known
    return found


def _is_shared(known: Any) -> bool:
    """Whether calling it may return an object that others see."""
    return not isinstance(known, type) or issubclass(known, enum.Enum)


class _Blank:
    """What a pickle says of an object of torch."""

    name: str
    state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def fields(self, *names: str) -> list[Any]:
        """The values of fields; ``None`` for those that it does not have."""
        if self.state is None:
            return [None] * len(names)
        if type(self.state) is not dict or not all(type(key) is str for key in self.state):
            raise _Refused(f"a `{shown(self.name)}` in it has no fields")
        return [self.state.get(name) for name in names]


_CLASSES = (
    "Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "TensorProperties",
    "ChunkStorageMetadata", "MetadataIndex", "StorageMeta",
)

_BLANKS = {
    name: type("_Blank", (_Blank,), {"name": name})
    for name in [
        *(f"{_HERE}.metadata.{name}" for name in _CLASSES), f"{_HERE}.filesystem._StorageInfo",
    ]
}
"""The classes of torch that metadata has, by their names in a pickle."""


class _Encoding:
    """The number of a memory format."""

    __slots__ = ("number",)

    def __init__(self, number: Any) -> None:
        self.number = _checked("a memory format", number, int)


def _path(*parts: Any) -> pathlib.PurePath:
    return pathlib.Path(*(_checked("a path", part, str) for part in parts))


def _layout(name: Any) -> torch.layout:
    return torch.serialization._get_layout(_checked("a layout", name, str))


def _size(sizes: Any) -> torch.Size:
    return torch.Size(_numbers("a shape", sizes))


def _set(*items: Any) -> set[Any]:
    for item in items[0] if items else ():
        _checked("an item of a set", item, (str, int, bytes, float, type(None)))
    return set(*items)


_CALLED = {
    "torch.Size": _size,
    "torch.serialization._get_layout": _layout,
    f"{_HERE}.metadata._MEM_FORMAT_ENCODING": _Encoding,
    "collections.OrderedDict": dict,
    "builtins.set": _set,
    "pathlib.PosixPath": _path,
    "pathlib._local.PosixPath": _path,
    **MADE,
}


def _checked(what: str, value: Any, kind: type[T] | tuple[type[T], ...]) -> T:
    """A value of a type; its text is not shown, since it may have no end."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _Refused(f"{what} in it is a `{type(value).__name__}`")
    return value


def _numbers(what: str, sizes: Any) -> tuple[int, ...]:
    for size in _checked(what, sizes, (tuple, list)):
        _checked(what, size, int)
    return tuple(sizes)


def _of(what: str, value: Any, name: str) -> _Blank:
    """An object of a class of torch."""
    found = _checked(what, value, _Blank)
    if found.name.rpartition(".")[2] != name:
        raise _Refused(f"{what} in it is a `{shown(found.name)}`")
    return found


def _metadata(blank: _Blank) -> dcp.metadata.Metadata:
    tensors, planner, storage, meta, version = blank.fields(
        "state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version"
    )
    if isinstance(planner, _Blank):
        raise _Refused("its data of the planner are those of a class of torch")
    places = {}
    for index, info in _checked("the places of items", storage, dict).items():
        places[_index(index)] = _info(info)
    items = _checked("the list of items", tensors, dict).items()
    return dcp.metadata.Metadata(
        state_dict_metadata={_checked("a name", key, str): _item(about) for key, about in items},
        planner_data=planner,
        storage_data=places,
        storage_meta=None if meta is None else _meta(meta),
        version=None if version is None else _checked("the version", version, str),
    )


def _item(value: Any) -> Any:
    if isinstance(value, _Blank) and value.name.endswith(".BytesStorageMetadata"):
        return dcp.metadata.BytesStorageMetadata()
    blank = _of("an item", value, "TensorStorageMetadata")
    properties, size, chunks = blank.fields("properties", "size", "chunks")
    return dcp.metadata.TensorStorageMetadata(
        _properties(properties), _size(size), list(map(_chunk, _checked("chunks", chunks, list)))
    )


def _chunk(value: Any) -> dcp.metadata.ChunkStorageMetadata:
    offsets, sizes = _of("a chunk", value, "ChunkStorageMetadata").fields("offsets", "sizes")
    return dcp.metadata.ChunkStorageMetadata(_size(offsets), _size(sizes))


def _properties(value: Any) -> dcp.metadata.TensorProperties:
    state = _of("the type of a tensor", value, "TensorProperties").state
    dtype, layout, gradient, encoding, pinned, *more = _checked("a type", state, tuple)
    number = _checked("a memory format", encoding, _Encoding).number
    strides = [None if one is None else _numbers("strides", one) for one in more]
    made = dcp.metadata.TensorProperties.__new__(dcp.metadata.TensorProperties)
    made.__setstate__((
        _checked("a type", dtype, torch.dtype),
        _checked("a layout", layout, torch.layout),
        _checked("a property", gradient, bool),
        dcp.metadata._MEM_FORMAT_ENCODING(number),
        _checked("a property", pinned, bool),
        *strides,
    ))
    return made


def _index(value: Any) -> dcp.metadata.MetadataIndex:
    fqn, offset, number = _of("an index", value, "MetadataIndex").fields("fqn", "offset", "index")
    return dcp.metadata.MetadataIndex(
        _checked("a name", fqn, str),
        None if offset is None else _size(offset),
        None if number is None else _checked("an index", number, int),
    )


def _info(value: Any) -> Any:
    """The place of an item; the reader checks the values."""
    names = ("relative_path", "offset", "length", "transform_descriptors")
    path, offset, length, transforms = _of("a place", value, "_StorageInfo").fields(*names)
    more = [_checked("a transform", one, str) for one in _checked("it", transforms or [], (list, tuple))]
    return dcp.filesystem._StorageInfo(path, offset, length, more or None)


def _meta(value: Any) -> dcp.metadata.StorageMeta:
    names = ("checkpoint_id", "save_id", "load_id", "modules")
    where, save, load, modules = _of("the storage's data", value, "StorageMeta").fields(*names)
    for text in (save, load, *_checked("modules", modules or [], list)):
        if text is not None:
            _checked("a text", text, str)
    if where is not None:
        _checked("a path", where, (str, os.PathLike))
    return dcp.metadata.StorageMeta(where, save, load, list(modules or []))


def _refuse(path: str, error: Exception) -> NoReturn:
    # Other errors may have values of the pickle in their text, which may have no end.
    known = (_Refused, pickle.UnpicklingError, ValueError, EOFError)
    why = str(error)[:200] if isinstance(error, known) else type(error).__name__
    made = FormatError(errno.EINVAL, f"cannot load `{shown(path)}`: {why}", path)
    made.hint = TRUST
    raise made from error
