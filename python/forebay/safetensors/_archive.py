"""Files that `torch.save` writes: a zip of a pickle and of an entry for each storage."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from .. import _forebay
from .._errors import Error, shortened, shown
from ._header import BITS, HEADER_MAX, FormatError, Header, Listed, Stored, product, refused
from ._pickle import BAD_PICKLE, BITS_SET, Storage, View, kind_of, mapping, tensor, unpickled

if TYPE_CHECKING:
    from .._forebay import File

_LOCAL = struct.Struct("<4s2xHH16xHH")
"""The header before an entry: magic, flags, method, lengths of the name and of extra fields."""

_ENCRYPTED = 1

_VERSIONS = {str(version).encode() for version in range(1, 11)}
"""Versions of the format that torch reads: `kMaxSupportedFileFormatVersion` is 10."""

_HEADS = 4096
"""Headers of entries that are read by one call."""

_HINT = (
    "load it by `torch.load(path, weights_only=True)`, and save its tensors by `save_file`; what that "
    "refuses may run code, and only `weights_only=False` loads it"
)

_RESOLVED = "save its `.resolve_conj().resolve_neg()`"
"""What to do with a tensor that is stored as its conjugate or negative."""

_MODEL = "state_dict"
"""The key of the tensors in a checkpoint that has the state of the training, too."""


def is_torch(head: bytes) -> bool | None:
    """Whether the first entry of a zip is that of `torch.save`; ``None`` for one of `numpy.savez`."""
    name = _first(head)
    return None if name.endswith(".npy") else name.endswith("/data.pkl")


def _first(head: bytes) -> str:
    """The name of the first entry."""
    length = _LOCAL.unpack_from(head)[3] if len(head) >= _LOCAL.size else 0
    return head[_LOCAL.size : _LOCAL.size + length].decode(errors="replace")


def read(file: File, path: str) -> Header:
    """Reads and checks where the tensors of an archive are.

    Raises:
        FormatError: it is broken, or does not hold tensors by name.
    """
    try:
        archive = _forebay.Archive(file)
        root = archive.root()
        if archive.entry(f"{root}/constants.pkl"):
            _refuse(path, "it is a program of TorchScript", "load it by `torch.jit.load`")
        order = archive.entry(f"{root}/byteorder")
        if order and _whole(file, f"{root}/byteorder", order) != b"little":
            raise ValueError("its numbers are not little-endian")
        _check_version(file, archive, root)
        name = f"{root}/data.pkl"
        if not (pickled := archive.entry(name)):
            raise ValueError(f"it has no entry `{shortened(name)}`")
        text = _whole(file, name, pickled)
    except Error:
        raise
    except ValueError as error:
        _refuse(path, f"it is not a complete zip of `torch.save`: {shown(error)}")
    try:
        views = _views(unpickled(text, file.size))
    except BITS_SET as error:
        _refuse(path, str(error), f"{_HINT}: {_RESOLVED}")
    except BAD_PICKLE as error:
        _refuse(path, f"its pickle does not hold tensors by name: {shown(str(error)[:300])}")
    by_key: dict[str, dict[str, View]] = {}
    for name, view in views.items():
        by_key.setdefault(view.storage.key, {})[name] = view
    found: list[tuple[int, int, int]] = []
    tensors: list[Stored] = []
    try:
        for key, own in by_key.items():
            if (entry := archive.entry(f"{root}/data/{key}")) is None:
                _refuse(path, f"it has no entry for its tensor `{shortened(next(iter(own)))}`")
            found.append(entry)
        for own, begin, entry in zip(by_key.values(), _begins(file, found), found, strict=True):
            tensors += _of_storage(path, own, begin, entry[1])
    except FormatError:
        raise
    except ValueError as error:
        _refuse(path, f"it is not a complete zip of `torch.save`: {shown(error)}")
    tensors.sort(key=lambda tensor: tensor.offset)
    return Header(path, Listed(tensors))


def _check_version(file: File, archive: _forebay.Archive, root: str) -> None:
    for name in (f"{root}/version", f"{root}/.data/version"):
        if entry := archive.entry(name):
            text = _whole(file, name, entry)
            if text.strip() not in _VERSIONS:
                raise ValueError(f"its version is `{shortened(text.decode(errors='replace'))}`")
            return
    raise ValueError("it has no entry `version`")


def _whole(file: File, name: str, entry: tuple[int, int, int]) -> bytes:
    """The bytes of a small entry. Its checksum is not compared, as torch does not."""
    if entry[1] > HEADER_MAX:
        raise ValueError(f"its entry `{shortened(name)}` has {entry[1]} bytes")
    data = bytearray(entry[1])
    file.read_into(data, next(_begins(file, [entry])))
    return bytes(data)


def _begins(file: File, entries: list[tuple[int, int, int]]) -> Iterator[int]:
    """Where the bytes of each entry begin, after its header."""
    for first in range(0, len(entries), _HEADS):
        some = entries[first : first + _HEADS]
        heads = bytearray(_LOCAL.size * len(some))
        each = [memoryview(heads)[at : at + _LOCAL.size] for at in range(0, len(heads), _LOCAL.size)]
        file.readv([(entry[0], _LOCAL.size, head) for entry, head in zip(some, each, strict=True)])
        for (at, nbytes, end), head in zip(some, each, strict=True):
            magic, flags, method, name, more = _LOCAL.unpack(head)
            begin = at + _LOCAL.size + name + more
            if magic != b"PK\x03\x04" or method or flags & _ENCRYPTED or begin + nbytes > end:
                raise ValueError(f"its entry at byte {at} is broken, or overlaps the next one")
            yield begin


def _views(found: Any) -> dict[str, View]:
    """The tensors by name."""
    named = mapping(found)
    if named is not None and (inner := mapping(named.get(_MODEL))) is not None:
        named = inner
    if named is None:
        raise TypeError(f"it is of type `{kind_of(found)}`")
    views = {}
    for name, value in named.items():
        try:
            views[name] = tensor(value)
        except TypeError as error:
            raise TypeError(f"`{shortened(name)}` in {error}") from error
    return views


def _of_storage(path: str, views: dict[str, View], begin: int, nbytes: int) -> Iterator[Stored]:
    """The tensors of a storage.

    If they are contiguous and do not overlap, each is read alone; equal ones are read once.
    Otherwise they are views of the whole storage, which is read once. So no more bytes are read
    than the file has.
    """
    ranges: set[tuple[int, int, str, tuple[int, ...]]] = set()
    is_alone = True
    for name, view in views.items():
        length = _checked(path, name, view, nbytes)
        if length:
            first = view.first * BITS[view.dtype] // 8
            ranges.add((first, first + length, view.dtype, view.shape))
            is_alone &= _is_row(view)
    ordered = sorted(ranges)
    is_alone &= all(one[1] <= other[0] for one, other in zip(ordered, ordered[1:]))
    for name, view in views.items():
        count, item = math.prod(view.shape), BITS[view.dtype] // 8
        if count == 0 or is_alone:
            offset = begin + view.first * item if count else begin
            # Dimensions of one element may have any stride.
            strides = None if _is_plain(view) else (0, view.strides)
            yield Stored(name, view.dtype, view.shape, offset, count * item, strides, path)
        else:
            kept = (view.first, view.strides)
            yield Stored(name, view.dtype, view.shape, begin, nbytes, kept, path)


def _checked(path: str, name: str, view: View, nbytes: int) -> int:
    """Checks a tensor, and returns how many bytes of its storage it spans."""
    its, bits = f"its tensor `{shortened(name)}`", BITS[view.dtype]
    claimed = _size(view.storage)
    if claimed != nbytes:
        _refuse(path, f"the storage of {its[4:]} has {nbytes} bytes, not {claimed}")
    if bits % 8:
        _refuse(path, f"{its} has elements of {bits} bits")
    own = product(list(view.shape), bits)
    if own == 0:
        return 0
    if own is None:
        _refuse(path, f"{its} has more than 2**64 bits")
    # A tensor may have more elements than its storage: `expand` repeats some.
    reach = sum((size - 1) * step for size, step in zip(view.shape, view.strides, strict=True)) + 1
    if (view.first + reach) * bits // 8 > nbytes:
        _refuse(path, f"{its} has elements after the end of its storage")
    return reach * bits // 8


def _size(storage: Storage) -> int:
    return storage.count * (BITS[storage.dtype] if storage.dtype else 8) // 8


def _is_row(view: View) -> bool:
    """Whether its elements are contiguous, in row order."""
    step = 1
    for size, own in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if size != 1 and own != step:
            return False
        step *= size
    return True


def _is_plain(view: View) -> bool:
    """Whether its strides are those of a new tensor of its shape."""
    step = 1
    for size, own in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if own != step:
            return False
        step *= max(size, 1)
    return True


def _refuse(path: str, why: str, hint: str = _HINT) -> NoReturn:
    raise refused(path, why, hint)
