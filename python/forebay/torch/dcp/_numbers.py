"""NumPy's numbers in pickles: what a pickle says of their types is checked, so no code runs."""

from __future__ import annotations

import re
from typing import Any

from ..._forebay import Record

_TYPE = re.compile("[biufc][0-9]{1,2}")
"""Kinds of numbers with their sizes, such as ``f8``. Other types may hold addresses."""

_SCALARS = ("numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar")


def number(value: Record) -> Any:
    """The type or the number of a record.

    Raises:
        ValueError: it is something else of NumPy.
    """
    if value.is_new or value.items or value.keys:
        raise ValueError("it has a NumPy value that is no number")
    if value.name == "numpy.dtype":
        return _dtype(value.arguments, value.state)
    match value.arguments, value.state:
        case (Record(name="numpy.dtype") as dtype, content), None:
            return _number(number(dtype), content)
    raise ValueError("it has a NumPy value that is no number")


def _dtype(given: tuple[Any, ...], state: Any) -> Any:
    import numpy

    match given, state:
        case (str() as code, False, True), None if _TYPE.fullmatch(code):
            return numpy.dtype(code)
        case (str() as code, False, True), (3, "<" | ">" | "|" as order, None, None, None, -1, -1, 0):
            if _TYPE.fullmatch(code):
                return numpy.dtype(code).newbyteorder(order)
    raise ValueError("it has a NumPy type that is no number")


def _number(dtype: Any, content: Any) -> Any:
    import numpy

    if type(content) is not bytes or len(content) != dtype.itemsize:
        raise ValueError("it has a NumPy value that is no number")
    return numpy.frombuffer(content, dtype)[0]


class _Dtype:
    """Takes the place of `numpy.dtype` where torch reads a pickle."""

    def __new__(cls, *given: Any) -> _Dtype:
        made = object.__new__(cls)
        made.given, made.state = given, None
        return made

    given: tuple[Any, ...]
    state: Any

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return _dtype(self.given, self.state).__reduce__()


def _scalar(dtype: Any, content: Any) -> Any:
    """Takes the place of the function that makes a number of its bytes."""
    if type(dtype) is not _Dtype:
        raise ValueError("it has a NumPy value that is no number")
    return _number(_dtype(dtype.given, dtype.state), content)


MADE: dict[str, Any] = {"numpy.dtype": _Dtype, **dict.fromkeys(_SCALARS, _scalar)}
"""The functions that take the place of NumPy's own, by the names that pickles have for those."""
