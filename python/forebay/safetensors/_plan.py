"""Which tensors are loaded, and where in memory their bytes go."""

from __future__ import annotations

import errno
import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .._errors import EndOfFile, Error, MissingFile, shortened, shown
from .._forebay import Engine, File
from ._files import STALE, ModelFile, Paths, files, listed, missing, names_near
from ._frameworks import Framework
from ._header import BITS, FormatError, Header, Stored, refused
from ._kinds import header as read
from ._pages import Pages, Stamp, changed
from ._requests import Requests
from ._slices import Index, bounds, kept_dimensions, runs

Names: TypeAlias = str | Collection[str] | Callable[[str], bool] | None
"""Tensors by name: a list, a pattern such as ``model.layers.*``, or a function; ``None`` is all."""

ALIGNMENT = 256
"""Tensors begin at multiples of it, as allocations of a GPU's driver do."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open file of a model, its header, and its requested tensors.

    Attributes:
        root: the state of its index, or else its own.
    """

    file: File
    stamp: Stamp
    root: Stamp
    header: Header
    tensors: list[Stored]


ATTEMPTS = 20
"""How often a load looks for the files of a model that saves replace."""


def opened(engine: Engine, paths: Paths, names: Names, closing: ExitStack) -> Iterator[Opened]:
    """Opens all files of a model, then reads one header after another.

    All are those of one save: their index is in place when all are open, and a save gives none of
    its files the name of a file that an index names.

    Args:
        closing: closes the files.

    Raises:
        FileChanged: saves replaced the model again and again.
        FormatError: a file is broken, or of neither kind, or two have a tensor of the same name.
        KeyError: a listed tensor is in none of them, or a pattern matches none.
    """
    if names is not None and not isinstance(names, str) and not callable(names):
        names = list(names)
    is_wanted = _filter(names)
    requested = names if isinstance(names, list) else []
    left = set(requested)
    has_match = False
    found_in: dict[str, str] = {}
    all_files = _open_all(engine, listed(paths), is_wanted, closing)
    for model_file, file in all_files:
        own = model_file.names
        yield (found := _described(file, model_file, is_wanted))
        has_match |= bool(found.tensors)
        left -= {stored.name for stored in found.tensors} if left else set()
        if own is None and len(all_files) > 1:
            _refuse_twice(found, found_in)
        lost = next((name for name in own or () if name not in found.header.tensors), None)
        if lost is not None:
            why = f"it has no tensor `{shortened(lost)}`, which the index lists"
            raise refused(found.header.path, why, STALE)
    if isinstance(names, str) and not has_match:
        raise KeyError(f"no tensor in the files of the model matches `{shortened(names)}`")
    if left:
        absent = next(name for name in requested if name in left)
        raise KeyError(f"no tensor `{shortened(absent)}` in the files of the model")


def _refuse_twice(found: Opened, found_in: dict[str, str]) -> None:
    """Refuses a file with a tensor that another file has, and remembers its own."""
    path = found.header.path
    for name in found.header.tensors:
        if other := found_in.get(name):
            both = f"`{shown(other)}` and `{shown(path)}`"
            text = f"cannot load {both} together: both have a tensor `{shortened(name)}`"
            raise FormatError(errno.EINVAL, text, other)
        found_in[name] = path


def _open_all(
    engine: Engine, paths: list[str], is_wanted: Callable[[str], bool], closing: ExitStack
) -> list[tuple[ModelFile, File]]:
    """Opens the files of a model that have requested tensors, those of one save."""
    before = None
    for _ in range(ATTEMPTS):
        with ExitStack() as own:
            try:
                found = [
                    (one, own.enter_context(_open(engine, one)))
                    for one in files(engine, paths)
                    # Other files may not have been downloaded.
                    if one.names is None or any(map(is_wanted, one.names))
                ]
            except Error:
                names = names_near(paths)
                if names == before:
                    raise  # no save was the cause
                before = names
                continue
            roots = {one.names.stamp for one, _ in found if one.names}
            if all(stamp.is_in_place() for stamp in roots):
                closing.enter_context(own.pop_all())
                return found
    raise changed(paths[0], f"saves replaced it {ATTEMPTS} times in a row", "load it again")


def _open(engine: Engine, model_file: ModelFile) -> File:
    try:
        return engine.open(model_file.path)
    except MissingFile as error:
        index = model_file.names.path if model_file.names else None
        error.hint = missing(model_file.path, index) or error.hint
        raise


def open_one(engine: Engine, path: str) -> Opened:
    """Opens a file and reads its header. No tensor is described: there may be a million."""
    file = _open(engine, one := ModelFile(path))
    try:
        return _described(file, one, lambda _: False)
    except BaseException:
        file.close()
        raise


def _described(file: File, model_file: ModelFile, is_wanted: Callable[[str], bool]) -> Opened:
    """Reads the header of a file."""
    stamp, header, own = Stamp(file), read(file, model_file.path), model_file.names
    wanted = [
        header.tensors.at(place)
        for place, name in enumerate(header.tensors)
        if (own is None or name in own) and is_wanted(name)
    ]
    return Opened(file, stamp, own.stamp if own else stamp, header, wanted)


def _filter(names: Names) -> Callable[[str], bool]:
    if names is None:
        return lambda _: True
    if isinstance(names, str):
        return lambda name: fnmatch.fnmatchcase(name, names)
    return names if callable(names) else frozenset(names).__contains__


_SHORT = 4096
"""Bytes of a run below which it is read together with the next one, and the bytes in between."""

_NEAR = 32768
"""Bytes from one run to the next, up to which they are read together.

A run of its own costs a request of about 400 bytes, which takes as long as reading some ten
thousand bytes.
"""


@dataclass(slots=True)
class Region:
    """The bytes of a tensor, or of a part of one.

    Attributes:
        stored: the tensor.
        index: the part.
        shape: that of the part.
        first: where its first run begins in the tensor's bytes.
        run: the bytes of a run.
        repeats: how often runs repeat, and the bytes from one to the next, the outermost first.
        strides: its strides in memory in bytes, if runs have bytes between its elements.
        nbytes: the bytes of all runs.
    """

    stored: Stored
    index: Index
    shape: tuple[int, ...]
    first: int
    run: int
    repeats: list[tuple[int, int]]
    strides: tuple[int, ...] | None = None
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.nbytes = self.run
        for count, _ in self.repeats:
            self.nbytes *= count

    def placed(self, start: int) -> Placed:
        """The part in memory that its runs fill from `start` on."""
        return Placed(self.stored, self.shape, start, self.nbytes, self.strides, self.index)


def region(stored: Stored, index: Index, is_whole: bool = False) -> Region:
    """The bytes to read for a part of a tensor.

    Short runs that are near each other are read as one, and with `is_whole` all runs of elements
    of whole bytes: the part then has strides.
    """
    wanted, shape = bounds(index, stored)
    if wanted is None or stored.view is not None:
        return Region(stored, index, shape, 0, stored.nbytes, [])
    if 0 in shape:
        return Region(stored, index, shape, 0, 0, [])
    first, run, repeats = runs(stored, wanted)
    if BITS[stored.dtype] % 8:
        return Region(stored, index, shape, first, run, repeats)
    inner = 0
    while repeats and (is_whole or (run < _SHORT and repeats[-1][1] <= _NEAR)):
        count, inner = repeats.pop()
        run += (count - 1) * inner
    if not inner:
        return Region(stored, index, shape, first, run, repeats)
    strides, row, outer = [], BITS[stored.dtype] // 8, run
    for (start, stop), size in zip(reversed(wanted), reversed(stored.shape), strict=True):
        strides.append(row if row <= inner else outer)
        if row > inner:
            outer *= stop - start
        row *= size
    strides.reverse()
    kept = zip(strides, kept_dimensions(index, stored), strict=True)
    own = tuple(stride for stride, is_kept in kept if is_kept)
    return Region(stored, index, shape, first, run, repeats, own)


@dataclass(slots=True)
class Placed:
    """A tensor, or a part of one, in memory.

    Attributes:
        stored: the tensor.
        shape: that of the part.
        start: where its bytes begin in the memory.
        nbytes: how many bytes of memory it has, and those between its elements.
        strides: its strides there in bytes, if other bytes are between its elements.
        index: the part of a view, which is in memory as a whole.
    """

    stored: Stored
    shape: tuple[int, ...]
    start: int
    nbytes: int
    strides: tuple[int, ...] | None = None
    index: Index = ...


@dataclass(slots=True)
class Part:
    """Tensors that share a piece of memory, and the requests that fill it.

    Attributes:
        requests: the requests of a call, which may fill memory of several parts.
        begin: the place of this memory, if that of all parts of the call is joined.
        tensors: the tensors.
        nbytes: the bytes of this memory.
        pages: the memory, if it is that of the file.
    """

    requests: Requests = field(default_factory=Requests)
    begin: int = 0
    tensors: list[Placed] = field(default_factory=list)
    nbytes: int = 0
    pages: Pages | None = None
    _starts: dict[Any, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The end of this memory, if that of all parts of the call is joined."""
        return self.begin + self.nbytes

    def next(self) -> Part:
        """A part with memory of its own that the same call fills."""
        return Part(self.requests, self.end)

    def put(self, file: File, wanted: Region) -> None:
        """Adds a region of a tensor after the others."""
        start = free = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        offset, repeats = wanted.stored.offset + wanted.first, wanted.repeats
        if wanted.nbytes > 0:
            # Tensors of the same bytes, such as tied weights, share their memory.
            start = self._starts.setdefault((file, offset, wanted.run, *repeats), free)
            if start == free:
                self.requests.add(file, offset, wanted.run, repeats, self.begin + start)
        self.tensors.append(wanted.placed(start))
        self.nbytes = max(self.nbytes, start + wanted.nbytes)

    def map(self, wanted: Region) -> None:
        """Adds a region of a tensor where it is in the file's own pages."""
        self.tensors.append(wanted.placed(wanted.stored.offset + wanted.first))
        self.nbytes += wanted.nbytes

    def ranges(self, most: int) -> Iterator[tuple[int, int]]:
        """The bytes of a file that its tensors are, in pieces of up to `most` bytes."""
        begin = end = 0
        for one in sorted(self.tensors, key=lambda one: one.start):
            if one.start > end:
                yield from pieces(begin, end, most)
                begin = one.start
            end = max(end, one.start + one.nbytes)
        yield from pieces(begin, end, most)

    def shares(self, file: File, wanted: Region) -> bool:
        """Whether a tensor is a view of bytes that are in memory already."""
        stored = wanted.stored
        return stored.view is not None and (file, stored.offset, wanted.run) in self._starts

    def made(
        self, framework: Framework, memory: Any, dtype: Any = None
    ) -> Iterator[tuple[str, Any]]:
        """The tensors by name, those of floating-point numbers converted to `dtype`."""
        # Of views, the storage is converted, once: it may be smaller than what they show.
        storages: dict[Any, Any] = {}
        make = framework.maker(memory)
        for one in self.tensors:
            stored, begin = one.stored, one.start
            to = dtype if dtype is not None and framework.is_converted(stored, dtype) else None
            if stored.view is None and one.strides is None:
                made = make(stored, one.shape, begin, begin + one.nbytes)
                yield stored.name, made if to is None else framework.converted(made, to)
                continue
            item = BITS[stored.dtype] // 8
            key = (begin, one.nbytes, stored.dtype)
            flat = storages.get(key)
            if flat is None:
                count = one.nbytes // item
                flat = make(stored, (count,), begin, begin + count * item)
                if stored.view is not None:
                    flat = storages[key] = flat if to is None else framework.converted(flat, to)
            if stored.view is not None:
                yield stored.name, framework.view(flat, stored.shape, *stored.view)[one.index]
            else:
                strides = tuple(step // item for step in one.strides or ())
                own = framework.copied(framework.view(flat, one.shape, 0, strides))
                yield stored.name, own if to is None else framework.converted(own, to)


def pieces(begin: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Divides a range."""
    return ((at, min(at + most, end)) for at in range(begin, end, most))


@contextmanager
def naming(parts: Iterable[Part]) -> Iterator[None]:
    """Adds the names of the tensors concerned to an error of a read."""
    try:
        yield
    except Error as error:
        if error.offset is not None and error.length is not None:
            begin, end = error.offset, error.offset + error.length
            if isinstance(error, EndOfFile):
                begin += error.bytes or 0
            hit = [
                stored.name
                for part in parts
                for stored in (one.stored for one in part.tensors)
                if stored.path == error.filename
                and stored.offset < end
                and begin < stored.offset + stored.nbytes
            ]
            if hit:
                first, last = (f"`{shortened(name)}`" for name in (hit[0], hit[-1]))
                which = f"tensor {first}" if first == last else f"tensors {first} to {last}"
                error.strerror = f"cannot load the {which}: {error.strerror}"
        raise


def parts(wanted: Iterable[tuple[File, Stored, Index]], most: int) -> Iterator[Part]:
    """Divides tensors into parts of `most` bytes, or of one tensor that is larger."""
    part = Part()
    for file, stored, index in wanted:
        one = region(stored, index)
        if part.tensors and part.nbytes + one.nbytes > most and not part.shares(file, one):
            yield part
            part = Part()
        part.put(file, one)
    if part.tensors:
        yield part


def can_map(pages: Pages | None, wanted: Region) -> bool:
    """Whether a tensor can be used where it is in the pages of its file."""
    item = BITS[wanted.stored.dtype] // 8
    # Elements of less than a byte need contiguous bytes, others aligned ones.
    is_aligned = not item or (wanted.stored.offset + wanted.first) % item == 0
    return pages is not None and not wanted.repeats and is_aligned
