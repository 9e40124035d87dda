"""Which tensors are loaded, and where in memory their bytes go."""

from __future__ import annotations

import errno
import fnmatch
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .._errors import EndOfFile, Error, shortened, shown
from .._forebay import Engine, File
from ._files import ModelFile, Paths, files
from ._frameworks import Framework
from ._header import BITS, FormatError, Header, Stored
from ._kinds import header as read
from ._requests import Requests
from ._slices import Index, bounds, nbytes, runs

Names: TypeAlias = str | Collection[str] | Callable[[str], bool] | None
"""Tensors by name: a list, a pattern such as ``model.layers.*``, or a function; ``None`` is all."""

ALIGNMENT = 256
"""Tensors begin at multiples of it, as allocations of a GPU's driver do."""


@dataclass(frozen=True, slots=True)
class Opened:
    """An open file of a model, its header, and its requested tensors."""

    file: File
    header: Header
    tensors: list[Stored]


def opened(engine: Engine, paths: Paths, names: Names) -> Iterator[Opened]:
    """Opens the files of a model one after another; the caller closes them.

    Raises:
        FormatError: a file is broken, or of neither kind, or two have a tensor of the same name.
        KeyError: a listed tensor is in none of them, or a pattern matches none.
    """
    if names is not None and not isinstance(names, str) and not callable(names):
        names = list(names)
    is_wanted = _filter(names)
    seen: dict[str, str] = {}
    for model_file in files(paths):
        own = model_file.names
        if own is not None and not any(map(is_wanted, own)):
            seen.update(dict.fromkeys(own, model_file.path))  # it may not have been downloaded
            continue
        yield (found := open_one(engine, model_file, is_wanted))
        for name in (name for name in found.header.tensors if own is None or name in own):
            if other := seen.get(name):
                both = f"`{shown(other)}` and `{shown(found.header.path)}`"
                text = f"cannot load {both} together: both have a tensor `{shortened(name)}`"
                raise FormatError(errno.EINVAL, text, other)
            seen[name] = found.header.path
        missing = (own or frozenset()) - found.header.tensors.keys()
        if missing:
            text = (
                f"cannot load `{shown(found.header.path)}`: it has no tensor "
                f"`{shortened(min(missing))}`, which the index lists"
            )
            raise FormatError(errno.EINVAL, text, found.header.path)
    if isinstance(names, str) and not any(map(is_wanted, seen)):
        raise KeyError(f"no tensor in the files of the model matches `{shortened(names)}`")
    if isinstance(names, list):
        absent = [name for name in names if name not in seen]
        if absent:
            raise KeyError(f"no tensor `{shortened(absent[0])}` in the files of the model")


def open_one(engine: Engine, model_file: ModelFile, is_wanted: Callable[[str], bool]) -> Opened:
    """Opens a file of a model and reads its header."""
    file = engine.open(model_file.path)
    try:
        header = read(file, model_file.path)
    except BaseException:
        file.close()
        raise
    own = model_file.names
    names = (name for name in header.tensors if own is None or name in own)
    return Opened(file, header, [header.tensors[name] for name in names if is_wanted(name)])


def _filter(names: Names) -> Callable[[str], bool]:
    if names is None:
        return lambda _: True
    if isinstance(names, str):
        return lambda name: fnmatch.fnmatchcase(name, names)
    return names if callable(names) else frozenset(names).__contains__


@dataclass(slots=True)
class Part:
    """Tensors that share a piece of memory, and the requests that fill it.

    Attributes:
        requests: the requests of a call, which may fill memory of several parts.
        begin: the place of this memory, if that of all parts of the call is joined.
        tensors: each with the requested index, its shape, its place in the memory, and its length.
        nbytes: the bytes of this memory.
    """

    requests: Requests = field(default_factory=Requests)
    begin: int = 0
    tensors: list[tuple[Stored, Index, tuple[int, ...], int, int]] = field(default_factory=list)
    nbytes: int = 0
    _starts: dict[Any, int] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The end of this memory, if that of all parts of the call is joined."""
        return self.begin + self.nbytes

    def next(self) -> Part:
        """A part with memory of its own that the same call fills."""
        return Part(self.requests, self.end)

    def add(self, file: File, stored: Stored, index: Index = ...) -> None:
        """Adds a tensor, or a part of it, after the others."""
        wanted, shape = bounds(index, stored)
        length = nbytes(stored, shape)
        start = free = -(-self.nbytes // ALIGNMENT) * ALIGNMENT
        if length > 0:
            first, run = 0, length
            repeats: list[tuple[int, int]] = []
            if wanted is not None and not stored.view:
                first, run, repeats = runs(stored, wanted)
            # Tensors of the same bytes, such as tied weights, share their memory.
            start = self._starts.setdefault((file, stored.offset + first, run, *repeats), free)
            if start == free:
                at = self.begin + start
                self.requests.add(file, stored.offset + first, run, repeats, at)
        self.tensors.append((stored, index, shape, start, length))
        self.nbytes = max(self.nbytes, start + length)

    def shares(self, file: File, stored: Stored, length: int) -> bool:
        """Whether a tensor is a view of bytes that are in memory already."""
        return stored.view is not None and (file, stored.offset, length) in self._starts

    def made(self, framework: Framework, memory: Any) -> Iterator[tuple[str, Any]]:
        """The tensors by name."""
        for stored, index, shape, start, length in self.tensors:
            if stored.view is None:
                yield stored.name, framework.tensor(memory[start : start + length], stored, shape)
                continue
            item = BITS[stored.dtype] // 8
            count = length // item
            flat = framework.tensor(memory[start : start + count * item], stored, (count,))
            yield stored.name, framework.view(flat, stored.shape, *stored.view)[index]


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
                for stored, *_ in part.tensors
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
        length = nbytes(stored, bounds(index, stored)[1])
        if part.tensors and part.nbytes + length > most and not part.shares(file, stored, length):
            yield part
            part = Part()
        part.add(file, stored, index)
    if part.tensors:
        yield part
