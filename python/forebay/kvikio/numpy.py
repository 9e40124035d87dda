"""NumPy's `fromfile` and `tofile`, to and from memory on the host or on a GPU."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np

from .cufile import CuFile


@runtime_checkable
class FileLike(Protocol):
    """A Python file with a descriptor."""

    def fileno(self) -> int:
        """Its descriptor."""

    @property
    def name(self) -> Any:
        """Its path."""


class LikeWrapper:
    """Makes ``numpy.fromfile(..., like=LikeWrapper(array))`` read into an array like that."""

    def __init__(self, like: Any) -> None:
        self._like = like

    def __array_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Called by NumPy."""
        if func is np.fromfile:
            return fromfile(*args, **kwargs, like=self._like)
        return func(*args, **kwargs)


def _path_of(file: Any) -> Any:
    if not isinstance(file, FileLike):
        return os.fspath(file)
    # By now its name may belong to another file, or to none.
    known = f"/proc/self/fd/{file.fileno()}"
    return known if os.path.exists(known) else file.name


def fromfile(
    file: Any,
    dtype: Any = float,
    count: int = -1,
    sep: str = "",
    offset: int = 0,
    *,
    like: Any = None,
) -> Any:
    """Reads a file of numbers, as `numpy.fromfile` does.

    Args:
        file: its path, or a Python file, whose own position is ignored.
        dtype: the type of the numbers.
        count: how many numbers, at most as many as the file has; -1 means all.
        sep: must be empty: text is not read.
        offset: bytes to skip at the start.
        like: an array, such as ``cupy.empty(())``, of the library and the device of the new one.

    Raises:
        NotImplementedError: text mode.
        ValueError: `offset` is beyond the end, `count` is below -1, or elements of `dtype` have no
            bytes.
    """
    if sep != "":
        raise NotImplementedError("`sep` must be empty: use `numpy.fromfile` for text files")
    path, kind = _path_of(file), np.dtype(dtype)
    count, offset = operator.index(count), operator.index(offset)
    if kind.itemsize == 0:
        raise ValueError(f"`dtype` is {kind!r}, whose elements have no bytes: give a length")
    there = os.path.getsize(path)
    if not 0 <= offset <= there:
        raise ValueError(f"`offset` is {offset}, but the file has {there} bytes")
    if count < -1:
        raise ValueError(f"`count` cannot be {count}: give a number from 0 up, or -1 for all")
    most = (there - offset) // kind.itemsize
    shape = (most if count == -1 else min(count, most),)
    made = np.empty(shape, kind) if like is None else np.empty_like(like, shape=shape, dtype=kind)
    with CuFile(path, "r") as opened:
        opened.read(made, file_offset=offset)
    return made


def tofile(ary: Any, file: Any) -> None:
    """Truncates a file and writes an array's numbers to it, row by row.

    Args:
        ary: the array, on the host or on a GPU.
        file: the file's path, or a Python file, whose own position is ignored.
    """
    like = ary if hasattr(ary, "__array_function__") else None
    whole = np.ascontiguousarray(ary, like=like)
    with CuFile(_path_of(file), "w") as opened:
        opened.write(whole)
