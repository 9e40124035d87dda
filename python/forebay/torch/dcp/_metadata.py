"""The metadata of a checkpoint, which torch pickles: nothing in it runs here.

`_forebay.unpickled` reads the pickle into records. Torch's own objects are made of these once their
fields have been checked, so that no pickle changes an object, class or enumeration of the process.
"""

from __future__ import annotations

import enum
import errno
import os
import pathlib
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed.checkpoint as dcp  # type: ignore[import-not-found,unused-ignore]

from ... import _forebay
from ..._errors import Error, shown
from ..._forebay import Global, Record
from ...safetensors import FormatError
from ...safetensors._files import small_file
from ...safetensors._pickle import kind_of
from ._item import KEYS_MAX, TRUST
from ._numbers import MADE, number

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
        reader = _Reader(_safe())
        called, made = {*_CALLED, *reader.safe}, {*_CLASSES, *reader.safe}
        found = _forebay.unpickled(content, len(content), called, made, KEYS_MAX)
        return reader.metadata(found)
    except LookupError as error:
        _refuse(path, f"{error}, which may run code", error, TRUST)
    except _Refused as error:
        _refuse(path, str(error), error, _HINT)
    except (ValueError, RecursionError) as error:
        _refuse(path, str(error)[:200], error, _HINT)


class _Refused(Exception):
    """The reason why metadata is broken."""


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


_ENCODING = f"{_HERE}.metadata._MEM_FORMAT_ENCODING"
_METADATA = f"{_HERE}.metadata.Metadata"
_ITEM = f"{_HERE}.metadata.TensorStorageMetadata"
_BYTES = f"{_HERE}.metadata.BytesStorageMetadata"
_PROPERTIES = f"{_HERE}.metadata.TensorProperties"
_CHUNK = f"{_HERE}.metadata.ChunkStorageMetadata"
_INDEX = f"{_HERE}.metadata.MetadataIndex"
_META = f"{_HERE}.metadata.StorageMeta"
_INFO = f"{_HERE}.filesystem._StorageInfo"

_CLASSES = (_METADATA, _ITEM, _BYTES, _PROPERTIES, _CHUNK, _INDEX, _META, _INFO)
"""The classes of torch that metadata has, by their names in a pickle."""

_CALLED = {
    "torch.Size", "torch.serialization._get_layout", _ENCODING,
    "collections.OrderedDict", "builtins.set", "pathlib.PosixPath", "pathlib._local.PosixPath",
    *MADE,
}
"""What else it calls."""

_DIMENSIONS = 64
"""Most dimensions of a tensor, as in NumPy."""

_KEYS = (str, bytes, int, float, tuple, type(None))


def _checked(what: str, value: Any, kind: type[T] | tuple[type[T], ...]) -> T:
    """A value of a type; its text is not shown, since it may have no end."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _Refused(f"{what} in it is of type `{kind_of(value)}`")
    return value


def _pairs(what: str, value: Any) -> Iterable[tuple[Any, Any]]:
    """The keys and values of a dictionary."""
    is_dict = isinstance(value, Record) and value.name in ("builtins.dict", "collections.OrderedDict")
    if not is_dict or value.arguments or value.items:
        raise _Refused(f"{what} in it is of type `{kind_of(value)}`")
    return zip(value.keys, value.values, strict=True)


def _named(what: str, value: Any) -> dict[str, Any]:
    """A dictionary whose keys are texts."""
    pairs = _pairs(what, value)
    if not {str}.issuperset(map(type, value.keys)):
        raise _Refused(f"{what} in it has a name that is no text")
    found = dict(pairs)
    if len(found) != len(value.keys):
        raise _Refused(f"{what} in it has a name twice")
    return found


def _called(what: str, value: Any, name: str, count: int) -> tuple[Any, ...]:
    """The arguments of a call of a function, which has so many."""
    is_call = isinstance(value, Record) and value.name == name and not value.is_new
    arguments: tuple[Any, ...] = value.arguments if is_call else ()
    if len(arguments) != count or value.state is not None:
        raise _Refused(f"{what} in it is of type `{kind_of(value)}`")
    return arguments


def _of(what: str, value: Any, name: str) -> Record:
    """An object of a class of torch."""
    if not isinstance(value, Record) or value.name != name or not value.is_new or value.arguments:
        raise _Refused(f"{what} in it is of type `{kind_of(value)}`")
    return value


def _fields(what: str, value: Any, name: str, *names: str) -> list[Any]:
    """The values of an object's fields; ``None`` for those that it does not have."""
    found = _of(what, value, name).fields(*names)
    if found is None:
        raise _Refused(f"{what} in it has no fields")
    return found


def _numbers(what: str, sizes: Any) -> tuple[int, ...]:
    if len(_checked(what, sizes, (tuple, list))) > _DIMENSIONS:
        raise _Refused(f"{what} in it has {len(sizes)} numbers")
    for size in sizes:
        if type(size) is not int:
            raise _Refused(f"{what} in it has a `{kind_of(size)}`")
    return tuple(sizes)


def _size(value: Any) -> torch.Size:
    if isinstance(value, Record):
        [value] = _called("a shape", value, "torch.Size", 1)
    return torch.Size(_numbers("a shape", value))


class _Reader:
    """Makes objects of records, one for each record.

    Args:
        safe: the classes and functions that the program has allowed, by their names.
    """

    def __init__(self, safe: dict[str, Any]) -> None:
        self.safe = safe
        self._made: dict[tuple[Any, int], Any] = {}

    def _once(self, make: Callable[[Any], Any], value: Any) -> Any:
        """What `make` returns: once for a record that occurs several times."""
        key = (make.__name__, id(value))
        if key not in self._made:
            self._made[key] = make(value)
        return self._made[key]

    def metadata(self, found: Any) -> dcp.metadata.Metadata:
        names = ("state_dict_metadata", "planner_data", "storage_data", "storage_meta", "version")
        fields = _fields("its object", found, _METADATA, *names)
        tensors, planner, storage, meta, version = fields
        return dcp.metadata.Metadata(
            state_dict_metadata={
                name: self._once(self._item, about)
                for name, about in _named("the list of items", tensors).items()
            },
            planner_data=self._plain(planner),
            storage_data={
                self._once(_index, index): self._once(_info, info)
                for index, info in _pairs("the places of items", storage)
            },
            storage_meta=None if meta is None else _meta(meta),
            version=None if version is None else _checked("the version", version, str),
        )

    def _item(self, value: Any) -> Any:
        if isinstance(value, Record) and value.name == _BYTES:
            _of("an item", value, _BYTES)
            return dcp.metadata.BytesStorageMetadata()
        names = ("properties", "size", "chunks")
        properties, size, chunks = _fields("an item", value, _ITEM, *names)
        return dcp.metadata.TensorStorageMetadata(
            self._once(_properties, properties), _size(size), self._once(self._chunks, chunks)
        )

    def _chunks(self, value: Any) -> list[dcp.metadata.ChunkStorageMetadata]:
        return [self._once(_chunk, one) for one in _checked("chunks", value, list)]

    def _plain(self, value: Any) -> Any:
        """A value of the planner, which may have any type that is safe."""
        return self._once(self._new, value)

    def _new(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(self._plain, value))
        if isinstance(value, Global):
            made = getattr(torch, value.name.removeprefix("torch."), None)
            if isinstance(made, torch.dtype) and value.name.startswith("torch."):
                return made
            if value.name in self.safe:
                return self.safe[value.name]
            raise _Refused(f"its data of the planner have a `{kind_of(value)}`")
        if not isinstance(value, Record):
            return value
        if value.name in self.safe:
            return self._allowed(self.safe[value.name], value)
        return self._known(value)

    def _known(self, value: Record) -> Any:
        match value.name, value.arguments:
            case "builtins.dict" | "collections.OrderedDict", ():
                for key in value.keys:
                    _checked("a key", key, _KEYS)
                return {self._plain(key): self._plain(one) for key, one in _pairs("a value", value)}
            case "builtins.set" | "builtins.frozenset", given:
                items = value.items or (given[0] if given else ())
                for item in _checked("the items of a set", items, (list, tuple)):
                    _checked("an item of a set", item, (str, int, bytes, float, type(None)))
                return frozenset(items) if value.name == "builtins.frozenset" else set(items)
            case "torch.Size", _:
                return _size(value)
            case "torch.serialization._get_layout", _:
                return _layout(value)
            case "pathlib.PosixPath" | "pathlib._local.PosixPath", parts:
                return _path(*parts)
            case name, _ if name in MADE:
                return number(value)
        raise _Refused(f"its data of the planner have a `{kind_of(value)}`")

    def _allowed(self, known: Any, value: Record) -> Any:
        """An object of a class that the program has allowed, as `pickle` makes it."""
        arguments = self._plain(value.arguments)
        made = known.__new__(known, *arguments) if value.is_new else known(*arguments)
        if (value.items or value.keys or value.state is not None) and _is_shared(known):
            raise _Refused("it changes an object that it did not make")
        for item in value.items:
            made.append(self._plain(item))
        for key, one in zip(value.keys, value.values, strict=True):
            made[self._plain(key)] = self._plain(one)
        if value.state is not None:
            state = self._plain(value.state)
            if hasattr(made, "__setstate__"):
                made.__setstate__(state)
            else:
                vars(made).update(state)
        return made


def _path(*parts: Any) -> pathlib.PurePath:
    return pathlib.Path(*(_checked("a path", part, str) for part in parts))


def _layout(value: Any) -> torch.layout:
    [name] = _called("a layout", value, "torch.serialization._get_layout", 1)
    return torch.serialization._get_layout(_checked("a layout", name, str))


def _chunk(value: Any) -> dcp.metadata.ChunkStorageMetadata:
    offsets, sizes = _fields("a chunk", value, _CHUNK, "offsets", "sizes")
    return dcp.metadata.ChunkStorageMetadata(_size(offsets), _size(sizes))


def _properties(value: Any) -> dcp.metadata.TensorProperties:
    state = _checked("a type", _of("the type of a tensor", value, _PROPERTIES).state, tuple)
    if len(state) < 5:
        raise _Refused(f"a type in it has {len(state)} properties")
    dtype, layout, gradient, encoding, pinned, *more = state
    [code] = _called("a memory format", encoding, _ENCODING, 1)
    strides = [None if one is None else _numbers("strides", one) for one in more]
    known = getattr(torch, _checked("a type", dtype, Global).name.removeprefix("torch."), None)
    made = dcp.metadata.TensorProperties.__new__(dcp.metadata.TensorProperties)
    made.__setstate__((
        _checked("a type", known, torch.dtype),
        _layout(layout),
        _checked("a property", gradient, bool),
        dcp.metadata._MEM_FORMAT_ENCODING(_checked("a memory format", code, int)),
        _checked("a property", pinned, bool),
        *strides,
    ))
    return made


def _index(value: Any) -> dcp.metadata.MetadataIndex:
    names = ("fqn", "offset", "index")
    fqn, offset, number = _fields("an index", value, _INDEX, *names)
    return dcp.metadata.MetadataIndex(
        _checked("a name", fqn, str),
        None if offset is None else _size(offset),
        None if number is None else _checked("an index", number, int),
    )


def _info(value: Any) -> Any:
    """The place of an item; the reader checks the values."""
    names = ("relative_path", "offset", "length", "transform_descriptors")
    found = _fields("a place", value, _INFO, *names)
    path, offset, length, transforms = found
    transforms = _checked("transforms", transforms or [], (list, tuple))
    more = [_checked("a transform", one, str) for one in transforms[:_DIMENSIONS]]
    if len(more) != len(transforms):
        raise _Refused(f"a place in it has {len(transforms)} transforms")
    return dcp.filesystem._StorageInfo(path, offset, length, more or None)


def _meta(value: Any) -> dcp.metadata.StorageMeta:
    names = ("checkpoint_id", "save_id", "load_id", "modules")
    where, save, load, modules = _fields("the storage's data", value, _META, *names)
    for text in (save, load, *_checked("modules", modules or [], list)):
        if text is not None:
            _checked("a text", text, str)
    if isinstance(where, Record) and where.name in ("pathlib.PosixPath", "pathlib._local.PosixPath"):
        where = _path(*where.arguments)
    elif where is not None:
        _checked("a path", where, str)
    return dcp.metadata.StorageMeta(where, save, load, list(modules or []))


def _refuse(path: str, why: str, error: Exception, hint: str) -> NoReturn:
    made = FormatError(errno.EINVAL, f"cannot load `{shown(path)}`: {why}", path)
    made.hint = hint
    raise made from error
