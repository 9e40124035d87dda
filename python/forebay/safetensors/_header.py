"""The header of a safetensors file: which of its bytes are whose.

The format is that of safetensors 0.8: eight bytes with the length of the header, the header in
JSON, and the tensors' bytes, which lie one after another without gaps up to the file's end.
"""

from __future__ import annotations

import errno
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from .._errors import Error, shown

if TYPE_CHECKING:
    from .._forebay import File

LENGTH = 8
"""Bytes of the number with which a file begins."""

METADATA = "__metadata__"
"""The name in a header that is no tensor's."""

HEADER_MAX = 100_000_000
"""Bytes of a header at most, as safetensors has it."""

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
"""The types, and how many bits an element has."""

_SIZE_MAX = 2**64 - 1


class FormatError(Error, ValueError):
    """A file is not what its kind of file has to be."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor in a file.

    Attributes:
        name: its name.
        dtype: its type, by the format's name, such as ``BF16``.
        shape: its shape, in elements of that type.
        offset: where its bytes begin, from the start of the file.
        nbytes: how many bytes it has, or those that it is a view of.
        view: its first element among those, and its strides, in elements.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    view: tuple[int, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """What a file's header says.

    Attributes:
        path: the file.
        metadata: the texts under ``__metadata__``, or ``None``.
        tensors: the tensors by name, in the order of their bytes.
        begin: where the first tensor's bytes begin.
        end: the size of the file.
    """

    path: str
    metadata: dict[str, str] | None
    tensors: dict[str, Stored]
    begin: int
    end: int


def read(file: File, path: str) -> Header:
    """Reads and checks the header of a file.

    Raises:
        FormatError: it is no safetensors file.
    """
    size = file.size
    if size < LENGTH:
        _refuse(path, f"it has {size} bytes, and the length of its header takes {LENGTH}")
    head = bytearray(LENGTH)
    file.read_into(head)
    length = int.from_bytes(head, "little")
    if length > HEADER_MAX:
        _refuse(path, f"its header would have {length} bytes, and {HEADER_MAX} are the most")
    if length > size - LENGTH:
        _refuse(path, f"its header would have {length} bytes, and the file has {size}")
    text = bytearray(length)
    file.read_into(text, LENGTH)
    return parse(bytes(text), size, path)


def parse(text: bytes, size: int, path: str) -> Header:
    """Checks a header of a file of `size` bytes."""
    try:
        found = json.loads(text.decode(), object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"its header is no JSON: {error}")
    if not isinstance(found, dict):
        _refuse(path, "its header is no JSON object")
    metadata = found.pop(METADATA, None)
    if metadata is not None and not are_texts(metadata):
        _refuse(path, f"`{METADATA}` of its header is no object of texts")
    begin = LENGTH + len(text)
    tensors = [_stored(path, name, about, begin) for name, about in found.items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    end = begin
    for tensor in tensors:
        if tensor.offset != end:
            kind = "overlap" if tensor.offset < end else "are a gap"
            _refuse(path, f"bytes before its tensor `{shown(tensor.name)}` {kind}")
        end += tensor.nbytes
    if end != size:
        _refuse(path, f"its tensors end at byte {end}, and the file at byte {size}")
    return Header(path, metadata, {tensor.name: tensor for tensor in tensors}, begin, end)


def _stored(path: str, name: str, about: Any, begin: int) -> Stored:
    """A tensor of the header."""

    def refuse(why: str) -> NoReturn:
        _refuse(path, f"its tensor `{shown(name)}` {why}")

    if not isinstance(about, dict):
        refuse("is no JSON object")
    dtype: Any = about.get("dtype")
    shape: Any = about.get("shape")
    offsets: Any = about.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in BITS:
        refuse(f"has the type `{shown(dtype)}`, which is none of safetensors'")
    if not _are_sizes(shape):
        refuse("has no shape of whole numbers")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        refuse("has no `data_offsets` of two rising numbers")
    bits = product(shape, BITS[dtype])
    if bits is None:
        refuse("has more than 2**64 bits")
    if bits % 8:
        refuse(f"has {bits} bits, which are no whole bytes")
    nbytes = offsets[1] - offsets[0]
    if nbytes != bits // 8:
        kind = f"`{dtype}` of shape {shape}"
        refuse(f"has {nbytes} bytes, and {kind} takes {bits // 8}")
    return Stored(name, dtype, tuple(shape), begin + offsets[0], nbytes)


def product(shape: list[int], bits: int) -> int | None:
    """The bits of all elements; ``None`` if a step overflows, also where a later size is zero."""
    total = 1
    for size in [*shape, bits]:
        total *= size
        if total > _SIZE_MAX:
            return None
    return total


def _are_sizes(found: Any) -> bool:
    """Whether it is a list of whole numbers that are no less than zero."""
    return isinstance(found, list) and all(
        type(size) is int and 0 <= size <= _SIZE_MAX for size in found
    )


def are_texts(found: Any) -> bool:
    """Whether it is an object of texts."""
    return isinstance(found, Mapping) and all(
        isinstance(text, str) for pair in found.items() for text in pair
    )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are all different; names and texts can be written as UTF-8."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name `{shown(twice)}` stands in it twice")
    for name, value in pairs:
        name.encode()
        if isinstance(value, str):
            value.encode()
    return found


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"`{text}` is no number")


def _refuse(path: str, why: str) -> NoReturn:
    raise refused(path, why, "is it a whole safetensors file?")


def refused(path: str, why: str, hint: str | None) -> FormatError:
    """The error for a file, an index or a folder that cannot be loaded."""
    made = FormatError(errno.EINVAL, f"cannot load `{shown(path)}`: {why}", path)
    made.hint = hint
    return made
