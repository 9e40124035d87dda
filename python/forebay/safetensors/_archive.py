"""Files that `torch.save` writes: a zip of a pickle and of an entry for each storage."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any, NoReturn, cast

from .._errors import shortened, shown
from ._header import BITS, HEADER_MAX, FormatError, Header, Stored, product, refused
from ._pickle import BAD_PICKLE, Storage, View, unpickled

if TYPE_CHECKING:
    from .._forebay import File

_LOCAL = struct.Struct("<4s2xHH16xHH")
"""The header before an entry: magic, flags, method, lengths of the name and of extra fields."""

_ENCRYPTED = 1

_BAD_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError)
"""Errors of `zipfile` for a file that is not a zip, or one that it cannot read."""

_HINT = "load it by `torch.load(path, weights_only=True)`, and save its tensors by `save_file`"

_MODEL = "state_dict"
"""The key of the tensors in a checkpoint that has the state of the training, too."""


class _Reader:
    """A file as `zipfile` reads it."""

    def __init__(self, file: File) -> None:
        self._file, self._at = file, 0

    def read(self, count: int = -1) -> bytes:
        left = max(self._file.size - self._at, 0)
        count = left if count < 0 else min(count, left)
        if count > HEADER_MAX:
            raise ValueError(f"its directory would have {count} bytes")
        data = bytearray(count)
        self._file.read_into(data, self._at)
        self._at += count
        return bytes(data)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(offset + (0, self._at, self._file.size)[whence], 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True


def names(file: File) -> list[str]:
    """The names of a zip's entries; none if it is broken."""
    try:
        return _opened(file).namelist()
    except _BAD_ZIP:
        return []


def read(file: File, path: str) -> Header:
    """Reads and checks where the tensors of an archive are.

    Raises:
        FormatError: it is broken, or does not hold tensors by name.
    """
    try:
        archive = _opened(file)
        entries = {entry.filename: entry for entry in archive.infolist()}
        root = next(iter(entries), "").partition("/")[0]
        if f"{root}/constants.pkl" in entries:
            _refuse(path, "it is a program of TorchScript", "load it by `torch.jit.load`")
        begins = dict(_begins(file, archive.infolist()))
        text = _whole(archive, entries, f"{root}/data.pkl")
        order = f"{root}/byteorder"
        if order in entries and _whole(archive, entries, order) != b"little":
            raise ValueError("its numbers are not little-endian")
    except FormatError:
        raise
    except _BAD_ZIP as error:
        _refuse(path, f"it is not a complete zip of `torch.save`: {shown(error)}")
    try:
        views = _views(unpickled(text))
    except BAD_PICKLE as error:
        _refuse(path, f"its pickle does not hold tensors by name: {shown(str(error)[:300])}")
    by_key: dict[str, dict[str, View]] = defaultdict(dict)
    for name, view in views.items():
        by_key[view.storage.key][name] = view
    tensors: list[Stored] = []
    for key, own in by_key.items():
        entry = entries.get(f"{root}/data/{key}")
        if entry is None:
            _refuse(path, f"it has no entry for its tensor `{shortened(next(iter(own)))}`")
        tensors += _of_storage(path, own, begins[entry.filename], entry.file_size)
    tensors.sort(key=lambda tensor: tensor.offset)
    return Header(path, None, {tensor.name: tensor for tensor in tensors})


def _opened(file: File) -> zipfile.ZipFile:
    return zipfile.ZipFile(cast(IO[bytes], _Reader(file)))


def _whole(archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], name: str) -> bytes:
    """The bytes of a small entry."""
    if name not in entries:
        raise ValueError(f"it has no entry `{name}`")
    if entries[name].file_size > HEADER_MAX:
        raise ValueError(f"its entry `{name}` has {entries[name].file_size} bytes")
    return archive.read(name)


def _begins(file: File, entries: list[zipfile.ZipInfo]) -> Iterator[tuple[str, int]]:
    """Where the bytes of each entry begin; entries must be uncompressed and not overlap."""
    entries = sorted(entries, key=lambda entry: entry.header_offset)
    if len({entry.filename for entry in entries}) < len(entries):
        raise ValueError("two of its entries have the same name")
    ends = [entry.header_offset for entry in entries[1:]] + [file.size]
    heads = [bytearray(_LOCAL.size) for _ in entries]
    for entry in entries:
        if not 0 <= entry.header_offset <= file.size - _LOCAL.size:
            raise ValueError(f"its entry `{entry.filename}` is outside the file")
    file.readv([(one.header_offset, len(head), head) for one, head in zip(entries, heads)])
    for entry, head, end in zip(entries, heads, ends, strict=True):
        magic, flags, method, name, more = _LOCAL.unpack(head)
        if magic != b"PK\x03\x04":
            raise ValueError(f"its entry `{entry.filename}` has no header")
        if method or entry.compress_type or (flags | entry.flag_bits) & _ENCRYPTED:
            raise ValueError(f"its entry `{entry.filename}` is compressed or encrypted")
        begin = entry.header_offset + _LOCAL.size + name + more
        if entry.compress_size != entry.file_size or begin + entry.file_size > end:
            raise ValueError(f"its entry `{entry.filename}` overlaps the next one")
        yield entry.filename, begin


def _views(found: Any) -> dict[str, View]:
    """The tensors by name."""
    if isinstance(found, dict) and isinstance(found.get(_MODEL), dict):
        found = found[_MODEL]
    if not isinstance(found, dict):
        raise TypeError(f"it is a `{type(found).__name__}`")
    for name, view in found.items():
        if not isinstance(name, str) or not isinstance(view, View):
            raise TypeError(f"`{shortened(name)}` in it is a `{type(view).__name__}`")
    return found


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
            yield Stored(name, view.dtype, view.shape, offset, count * item, None, path)
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


def _refuse(path: str, why: str, hint: str = _HINT) -> NoReturn:
    raise refused(path, why, hint)
