"""The tensors in the pickle of a file that `torch.save` wrote.

`_forebay.unpickled` reads the pickle, and runs nothing that it names. A name, such as
``os.system``, is only compared with the few names that tensors need. Sizes that it claims are kept
as numbers: no memory is allocated for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import _forebay
from .._errors import shortened
from .._forebay import Global, Record
from ._frameworks import NAMES

BAD_PICKLE = (ValueError, LookupError, TypeError)
"""Errors for a pickle that is not one of tensors."""


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

_DIMENSIONS = 64
"""Most dimensions of a tensor, as in NumPy."""

_PLAIN = ("torch.Tensor", "torch.nn.parameter.Parameter")
"""Classes of tensors that hold no more than their elements."""

CALLED = {
    "_codecs.encode", "builtins.set", "builtins.complex", "builtins.bytearray", "__builtin__.set",
    "__builtin__.complex", "__builtin__.bytearray", "torch.device", "collections.Counter",
    "collections.OrderedDict", "torch.Size", "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state",
    "torch._tensor._rebuild_from_type_v2",
}
"""Functions and classes that a file may call; torch allows them with `weights_only`, too."""

_DICTS = ("builtins.dict", "collections.OrderedDict")


def unpickled(text: bytes, length: int | None = None) -> Any:
    """The content of a pickle in a file of `length` bytes, by default of its own.

    Raises:
        ValueError: it is not a pickle as `torch.save` writes it.
        LookupError: it needs something other than tensors.
    """
    return _forebay.unpickled(text, len(text) if length is None else length, CALLED, ())


def kind_of(value: Any) -> str:
    """What a value is, for messages."""
    name = value.name if isinstance(value, Global | Record) else type(value).__name__
    return shortened(name.removeprefix("builtins."))


def mapping(value: Any) -> dict[str, Any] | None:
    """A dictionary with texts as keys; ``None`` if the value is not a dictionary.

    Raises:
        TypeError: a key is not a text.
        ValueError: a key occurs twice.
    """
    if not isinstance(value, Record) or value.name not in _DICTS or value.arguments or value.items:
        return None
    for key in value.keys:
        if type(key) is not str:
            raise TypeError(f"a name in it is of type `{kind_of(key)}`")
    found = dict(zip(value.keys, value.values, strict=True))
    if len(found) != len(value.keys):
        raise ValueError("it has a name twice")
    return found


def tensor(value: Any) -> View:
    """The tensor of a record.

    Raises:
        TypeError: it is something else.
        ValueError: it is not valid.
    """
    if not isinstance(value, Record):
        raise TypeError(f"it is of type `{kind_of(value)}`")
    view = _made(value.name, value.arguments)
    if value.items or value.keys or value.state is not None:
        raise ValueError("it changes a tensor")
    return view


def _made(name: str, arguments: Any) -> View:
    match name, arguments:
        case "torch._utils._rebuild_tensor", (storage, first, shape, strides):
            return _view(storage, None, first, shape, strides)
        case "torch._utils._rebuild_tensor_v2", (storage, first, shape, strides, _, _, *bits):
            _refuse_bits(bits)
            return _view(storage, None, first, shape, strides)
        case "torch._utils._rebuild_tensor_v3", (storage, first, shape, strides, _, _, dtype, *bits):
            _refuse_bits(bits)
            return _view(storage, dtype, first, shape, strides)
        case "torch._utils._rebuild_parameter", (data, _, _):
            return tensor(data)
        case "torch._utils._rebuild_parameter_with_state", (data, _, _, _):
            return tensor(data)
        case "torch._tensor._rebuild_from_type_v2", (Global() as inner, of, tuple() as own, _):
            if isinstance(of, Global) and of.name in _PLAIN:
                return _made(inner.name, own)
            raise ValueError(f"a tensor is of type `{kind_of(of)}`")
    raise TypeError(f"it is of type `{shortened(name.removeprefix('builtins.'))}`")


def _storage(value: Any) -> Storage:
    """The storage that a persistent identifier names."""
    if not isinstance(value, Record) or value.name != "persistent":
        raise ValueError("a tensor has no storage")
    match value.arguments[0]:
        case ("storage", Global() as typed, str() as key, _, count) if key.isascii():
            pass
        case _:
            raise ValueError("a storage has no name or no size")
    dtype = _STORAGES.get(typed.name)
    if dtype is None and typed.name not in ("torch.storage.UntypedStorage", "torch.UntypedStorage"):
        raise ValueError(f"a tensor has the type `{kind_of(typed)}`")
    if not _is_size(count):
        raise ValueError("a storage has no name or no size")
    return Storage(key, dtype, count)


def _view(stored: Any, typed: Any, first: Any, shape: Any, strides: Any) -> View:
    storage = _storage(stored)
    dtype = storage.dtype
    if typed is not None:
        if not isinstance(typed, Global) or not typed.name.startswith("torch."):
            raise ValueError(f"a tensor has the type `{kind_of(typed)}`")
        dtype = _DTYPES.get(typed.name.removeprefix("torch."))
    if dtype is None:
        raise ValueError(f"a tensor has the type `{kind_of(typed)}`")
    if isinstance(shape, Record) and shape.name == "torch.Size" and len(shape.arguments) == 1:
        [shape] = shape.arguments
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


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63
