"""The header of a safetensors file: the place of each tensor.

The format is that of safetensors 0.8: eight bytes with the length of the header, the header in
JSON, and the bytes of the tensors, one after another without gaps up to the end of the file.
"""

from __future__ import annotations

import errno
import functools
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from .._errors import Error, shortened, shown

if TYPE_CHECKING:
    from typing import Self

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

_DENSITY = 16
"""Fewest bytes for each list and object of a header. Those of tensors take more than 16."""

_TO_BRACKET = re.compile(
    rb'[^"\[{]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"\[{]*+)*+(?:.|\Z)', re.DOTALL
)
"""All bytes up to the next `[` or `{` that is not in a string."""


class FormatError(Error, ValueError):
    """A file is not valid in its format.

    In a program that has imported safetensors, it is also a `safetensors.SafetensorError`.
    """

    def __new__(cls, *args: Any) -> Self:
        made: Self = super().__new__(of_safetensors(cls), *args)
        return made


def of_safetensors(kind: Any) -> Any:
    """A class of exceptions that is also safetensors' own, if the program has imported that."""
    theirs = getattr(sys.modules.get("safetensors"), "SafetensorError", kind)
    return kind if issubclass(kind, theirs) else _both(kind, theirs)


@functools.cache
def _both(kind: Any, theirs: Any) -> type[Any]:
    def reduced(self: Any) -> Any:
        return (kind, *kind.__reduce__(self)[1:])  # this class has no name for `pickle`

    own = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce__": reduced}
    return type(kind.__name__, (kind, theirs), own)


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class Header:
    """The content of a file's header.

    Attributes:
        path: the file.
        metadata: the strings under ``__metadata__``, or ``None``.
        tensors: the tensors by name, in the order of their bytes.
    """

    path: str
    metadata: dict[str, str] | None
    tensors: dict[str, Stored]


def read(file: File, path: str) -> Header:
    """Reads and checks the header of a file.

    Raises:
        FormatError: it is not a safetensors file.
    """
    size = file.size
    if size < LENGTH:
        _refuse(path, f"it has {size} bytes, but the length of its header takes {LENGTH}")
    head = bytearray(LENGTH)
    file.read_into(head)
    length = int.from_bytes(head, "little")
    if length > HEADER_MAX:
        _refuse(path, f"its header would have {length} bytes, more than {HEADER_MAX}")
    if length > size - LENGTH:
        _refuse(path, f"its header would have {length} bytes, but the file has {size}")
    text = bytearray(length)
    file.read_into(text, LENGTH)
    return parse(text, size, path)


def parse(text: bytes | bytearray, size: int, path: str) -> Header:
    """Checks a header of a file of `size` bytes."""
    if _is_dense(text):
        _refuse(path, "its header has more lists and objects than its tensors need")
    try:
        found = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"its header is not JSON: {error}")
    if not isinstance(found, dict):
        _refuse(path, "its header is not a JSON object")
    metadata = found.pop(METADATA, None)
    if metadata is not None and not are_texts(metadata):
        _refuse(path, f"`{METADATA}` of its header is not an object of strings")
    begin = LENGTH + len(text)
    tensors = [_stored(path, name, about, begin) for name, about in found.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    end = begin
    for tensor in tensors:
        if tensor.offset != end:
            kind = "overlap with" if tensor.offset < end else "gap before"
            _refuse(path, f"{kind} its tensor `{shortened(tensor.name)}`")
        end += tensor.nbytes
    if end != size:
        _refuse(path, f"its tensors end at byte {end}, but the file at byte {size}")
    return Header(path, metadata, {tensor.name: tensor for tensor in tensors})


def _is_dense(text: bytes | bytearray) -> bool:
    """Whether JSON has so many lists and objects that parsing them takes much memory."""
    most = len(text) // _DENSITY + 64
    if text.count(b"[") + text.count(b"{") <= most:
        return False
    return next(islice(_TO_BRACKET.finditer(text), most + 1, None), None) is not None


def _stored(path: str, name: str, about: Any, begin: int) -> Stored:
    """A tensor of the header."""

    def refuse(why: str) -> NoReturn:
        _refuse(path, f"its tensor `{shortened(name)}` {why}")

    if not isinstance(about, dict):
        refuse("is not a JSON object")
    dtype: Any = about.get("dtype")
    shape: Any = about.get("shape")
    offsets: Any = about.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        refuse(f"has the type `{shortened(dtype)}`, which safetensors does not have")
    if not _are_sizes(shape):
        refuse("has an invalid shape")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        refuse("has invalid `data_offsets`")
    bits = product(shape, BITS[dtype])
    if bits is None:
        refuse("has more than 2**64 bits")
    if bits % 8:
        refuse(f"has {bits} bits, which is not a whole number of bytes")
    nbytes = offsets[1] - offsets[0]
    if nbytes != bits // 8:
        kind = f"`{dtype}` of shape {shortened(shape)}"
        refuse(f"has {nbytes} bytes, but {kind} takes {bits // 8}")
    return Stored(name, dtype, tuple(shape), begin + offsets[0], nbytes, None, path)


def product(shape: list[int], bits: int) -> int | None:
    """The bits of all elements; ``None`` if a step overflows, even if a later size is zero."""
    total = 1
    for size in [*shape, bits]:
        total *= size
        if total > _SIZE_MAX:
            return None
    return total


def _are_sizes(found: Any) -> bool:
    """Whether it is a list of whole numbers, none of them negative."""
    return isinstance(found, list) and all(
        type(size) is int and 0 <= size <= _SIZE_MAX for size in found
    )


def are_texts(found: Any) -> bool:
    """Whether it maps strings to strings."""
    return isinstance(found, Mapping) and all(
        isinstance(text, str) for pair in found.items() for text in pair
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; refuses equal names, and strings that are not valid UTF-8."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"it has the name `{shortened(twice)}` twice")
    for name, value in pairs:
        name.encode()
        if isinstance(value, str):
            value.encode()
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"`{text}` is not a number in JSON")


def _refuse(path: str, why: str) -> NoReturn:
    raise refused(path, why, "check that it is a complete safetensors file")


def refused(path: str, why: str, hint: str | None) -> FormatError:
    """The error for a file, an index or a folder that cannot be loaded."""
    made = FormatError(errno.EINVAL, f"cannot load `{shown(path)}`: {why}", path)
    made.hint = hint
    return made
