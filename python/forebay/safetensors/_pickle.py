"""Reads the pickle of a file that `torch.save` wrote, and runs nothing that it names.

The opcodes are those of `pickletools`. A name in the pickle, such as ``os.system``, is only
compared with the few names that tensors need. Sizes that it claims are kept as numbers: no memory
is allocated for them.
"""

from __future__ import annotations

import pickletools
import struct
from dataclasses import dataclass
from typing import Any

from .._errors import shortened, shown
from ._frameworks import NAMES


BAD_PICKLE = (
    ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError, struct.error,
)
"""Errors of `unpickled` for bytes that are not a pickle of tensors."""


class BITS_SET(ValueError):  # noqa: N801, used as `BAD_PICKLE` is
    """A tensor is stored as its conjugate or its negative."""


@dataclass(frozen=True, slots=True)
class Storage:
    """Bytes in an entry of the archive; `dtype` is ``None`` for bytes of any type."""

    key: str
    dtype: str | None
    count: int


@dataclass(frozen=True, slots=True)
class View:
    """A tensor: its elements in a storage."""

    storage: Storage
    dtype: str
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Name(str):
    """A name of a class or function in the pickle."""


_DTYPES = {name: dtype for dtype, name in NAMES.items()}

STORAGES = {
    "Double": "float64",
    "Float": "float32",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
}
"""The types that torch has a class of storages for, such as ``torch.DoubleStorage``."""

_STORAGES = {f"torch.{name}Storage": _DTYPES[dtype] for name, dtype in STORAGES.items()}

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}

_NUMBERS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINBYTES", "BINBYTES"}

_TEXTS = {"BINUNICODE", "SHORT_BINSTRING"}

_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

_DIMENSIONS = 64
"""Most dimensions of a tensor, as in NumPy."""

_KEYS = (str, int, float, type(None))

_KEY_MAX = 64
"""Most items of a tuple that is a name."""


class _Opaque:
    """An object of the file that is no tensor, and that no load needs."""


_OPAQUE = {
    "_codecs.encode", "builtins.set", "builtins.complex", "builtins.bytearray", "__builtin__.set",
    "__builtin__.complex", "__builtin__.bytearray", "torch.device", "collections.Counter",
}
"""Functions and classes whose results are not needed; torch makes them with `weights_only`, too."""


def unpickled(text: bytes) -> Any:
    """The content of a pickle: dictionaries, lists, tuples, numbers, strings, `View`, `Storage`.

    Raises:
        ValueError: it needs something else.
        One of `BAD_PICKLE`: it is not a pickle.
    """
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: dict[int, Any] = {}

    def marked() -> list[Any]:
        nonlocal stack
        items, stack = stack, marks.pop()
        return items

    argument: Any
    for opcode, argument, _ in pickletools.genops(text):
        match opcode.name:
            case name if name in _NUMBERS or name in _TEXTS:
                stack.append(argument)
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case name if name in _TUPLES:
                count = _TUPLES[name]
                if len(stack) < count:
                    raise IndexError("its stack is empty")
                stack[-count:] = [tuple(stack[-count:])]
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "MARK":
                marks.append(stack)
                stack = []
            case "TUPLE":
                items = marked()
                stack.append(tuple(items))
            case "EMPTY_TUPLE":
                stack.append(())
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_DICT":
                stack.append({})
            case "APPEND":
                _extend(stack, [stack.pop()])
            case "APPENDS":
                items = marked()
                _extend(stack, items)
            case "SETITEM":
                value = stack.pop()
                _set(stack, [stack.pop(), value])
            case "SETITEMS":
                items = marked()
                _set(stack, items)
            case "GLOBAL":
                stack.append(_Name(argument.replace(" ", ".", 1)))
            case "BINPERSID":
                stack.append(_storage(*stack.pop()))
            case "REDUCE":
                arguments = stack.pop()
                stack.append(_made(stack.pop(), arguments))
            case "BUILD":  # attributes, such as a dictionary's `_metadata`
                stack.pop()
                if type(stack[-1]) not in (dict, _Opaque):
                    raise TypeError(f"it changes a `{type(stack[-1]).__name__}`")
            case "PROTO":
                pass
            case "STOP":
                return stack.pop()
            case name:
                raise ValueError(f"it has the opcode `{name}`, which no tensor needs")
    raise ValueError("it has no opcode `STOP`")


def _extend(stack: list[Any], items: list[Any]) -> None:
    if type(stack[-1]) is not list:
        raise TypeError(f"it appends to a `{type(stack[-1]).__name__}`")
    stack[-1].extend(items)


def _set(stack: list[Any], items: list[Any]) -> None:
    if type(stack[-1]) is not dict:
        raise TypeError(f"it sets an item of a `{type(stack[-1]).__name__}`")
    for key, value in zip(items[::2], items[1::2], strict=True):
        # No tuples of tuples: hashing a deeply nested one may take forever.
        parts = key if isinstance(key, tuple) and len(key) <= _KEY_MAX else (key,)
        for part in parts:
            if not isinstance(part, _KEYS):
                raise TypeError(f"a name in it is a `{type(part).__name__}`")
        stack[-1][key] = value


def _storage(kind: str, typed: str, key: str, place: str, count: int) -> Storage:
    """The storage that a persistent identifier names."""
    name = _named(typed)
    dtype = _STORAGES.get(name)
    if dtype is None and name not in ("torch.storage.UntypedStorage", "torch.UntypedStorage"):
        raise ValueError(f"a tensor has the type `{shown(name)}`")
    if kind != "storage" or type(key) is not str or not _is_size(count):
        raise ValueError("a storage has no name or no size")
    return Storage(key, dtype, count)


def _made(function: Any, arguments: tuple[Any, ...]) -> Any:
    """What a function of torch would return for these arguments."""
    match _named(function), arguments:
        case "collections.OrderedDict", ():
            return {}
        case "torch.Size", (tuple() as size,):
            return size
        case "torch._utils._rebuild_tensor", (storage, first, shape, strides):
            return _view(storage, storage.dtype, first, shape, strides)
        case "torch._utils._rebuild_tensor_v2", (storage, first, shape, strides, _, _, *bits):
            _refuse_bits(bits)
            return _view(storage, storage.dtype, first, shape, strides)
        case "torch._utils._rebuild_tensor_v3", (st, first, shape, strides, _, _, dtype, *bits):
            _refuse_bits(bits)
            name = _named(dtype)
            if (found := _DTYPES.get(name.removeprefix("torch."))) is None:
                raise ValueError(f"a tensor has the type `{shown(name)}`")
            return _view(st, found, first, shape, strides)
        case "torch._utils._rebuild_parameter", (View() as data, _, _):
            return data
        case "torch._utils._rebuild_parameter_with_state", (View() as data, _, _, _):
            return data
        case "torch._tensor._rebuild_from_type_v2", (inner, kind, tuple() as own, _):
            if _named(kind) in ("torch.Tensor", "torch.nn.parameter.Parameter"):
                return _made(inner, own)
            raise ValueError(f"a tensor is a `{shown(kind)}`")
        case name, _ if name in _OPAQUE:
            return _Opaque()
        case name, _:
            raise ValueError(f"it calls `{shortened(name)}`")


def _view(
    storage: Storage, dtype: str | None, first: int, shape: tuple[int, ...], strides: Any
) -> View:
    if not isinstance(storage, Storage) or dtype is None:
        raise ValueError("a tensor has no storage, or no type")
    if not isinstance(shape, tuple) or not isinstance(strides, tuple):
        raise ValueError("a tensor has no shape, or no strides")
    if len(shape) != len(strides) or len(shape) > _DIMENSIONS:
        raise ValueError(f"a tensor has {len(shape)} dimensions and {len(strides)} strides")
    if not all(map(_is_size, (first, *shape, *strides))):
        raise ValueError("a tensor has an invalid shape or strides")
    return View(storage, dtype, first, shape, strides)


def _refuse_bits(bits: list[Any]) -> None:
    """Refuses a tensor that is stored as its conjugate or its negative."""
    if bits and bits[0]:
        raise BITS_SET("a tensor in it is stored as its conjugate or its negative")


def _named(name: Any) -> str:
    if not isinstance(name, _Name):
        raise TypeError(f"it uses a `{type(name).__name__}` as a function or a type")
    return str(name)


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63
