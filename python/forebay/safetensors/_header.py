"""The header of a safetensors file: the place of each tensor.

`forebay._forebay.Header` reads and checks it (`crates/forebay-safetensors`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .. import _forebay
from .._errors import Error, shown

if TYPE_CHECKING:
    from .._forebay import File

LENGTH = 8
"""Bytes of the header's length, with which a file begins."""

METADATA = "__metadata__"
"""The name in a header that does not name a tensor."""

HEADER_MAX = 100_000_000
"""Most bytes of a header, as in safetensors."""

BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "C64": 64,
    "F64": 64,
    "I64": 64,
    "U64": 64,
}
"""The types, with the bits of an element."""

_SIZE_MAX = 2**64 - 1


if TYPE_CHECKING:

    class _Theirs(Exception): ...
else:
    try:
        from safetensors import SafetensorError as _Theirs
    except ImportError:
        _Theirs = Exception


class FormatError(Error, ValueError, _Theirs):
    """A file is not valid in its format.

    Where safetensors is installed, it is also a `safetensors.SafetensorError`.
    """


class MissingTensor(KeyError, _Theirs):
    """A file has no tensor of this name.

    Where safetensors is installed, it is also a `safetensors.SafetensorError`.
    """

    __str__ = Exception.__str__  # `KeyError` shows its text in quotation marks


@dataclass(slots=True)
class Stored:
    """A tensor in a file.

    Attributes:
        name: its name.
        dtype: its type, by the format's name, such as ``BF16``.
        shape: its shape, in elements of that type.
        offset: where its bytes begin, from the start of the file.
        nbytes: how many bytes it has; for a view, those of its whole storage.
        view: for a view, its first element in the storage and its strides, in elements.
        path: the file.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    view: tuple[int, tuple[int, ...]] | None = None
    path: str = field(default="", repr=False)

    def facts(self) -> tuple[object, ...]:
        """All but its path: a `repr` of it is fast."""
        return self.name, self.dtype, self.shape, self.offset, self.nbytes, self.view


class Tensors(Protocol):
    """The tensors of a file by name, in the order of their bytes."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, name: object) -> bool: ...

    def place(self, name: str) -> int | None:
        """The number of a tensor in the order of their bytes; ``None`` if there is none."""

    def at(self, place: int) -> Stored:
        """The tensor of a number."""


class Listed:
    """Tensors in a list."""

    def __init__(self, tensors: list[Stored]) -> None:
        self._tensors = tensors
        self._places = {tensor.name: place for place, tensor in enumerate(tensors)}

    def __len__(self) -> int:
        return len(self._tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def place(self, name: str) -> int | None:
        return self._places.get(name)

    def at(self, place: int) -> Stored:
        return self._tensors[place]


@dataclass(frozen=True, slots=True)
class Header:
    """The content of a file's header.

    Attributes:
        path: the file.
        tensors: its tensors.
        metadata: returns the strings under ``__metadata__``, or ``None``.
    """

    path: str
    tensors: Tensors
    metadata: Callable[[], dict[str, str] | None] = lambda: None


def read(file: File, path: str) -> Header:
    """Reads and checks the header of a file.

    Raises:
        FormatError: it is not a safetensors file.
    """
    try:
        found = _forebay.Header.read(file, path, Stored)
    except Error:
        raise
    except ValueError as error:
        raise refused(path, str(error), "check that it is a complete safetensors file") from None
    return Header(path, found, found.metadata)


def product(shape: list[int], bits: int) -> int | None:
    """The bits of all elements; ``None`` if a step overflows, even if a later size is zero."""
    total = 1
    for size in [*shape, bits]:
        total *= size
        if total > _SIZE_MAX:
            return None
    return total


def are_texts(found: Any) -> bool:
    """Whether it maps strings to strings."""
    return isinstance(found, Mapping) and all(
        isinstance(text, str) for pair in found.items() for text in pair
    )


def refused(path: str, why: str, hint: str | None) -> FormatError:
    """The error for a file, an index or a folder that cannot be loaded."""
    made = FormatError(errno.EINVAL, f"cannot load `{shown(path)}`: {why}", path)
    made.hint = hint
    return made
