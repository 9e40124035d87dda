"""NumPy's numbers in pickles: what a pickle says of their types is checked, so no code runs."""

from __future__ import annotations

import re
from typing import Any

from ..._forebay import Record

_TYPE = re.compile("[biufc][0-9]{1,2}")
"""Kinds of numbers with their sizes, such as ``f8``. Other types may hold addresses."""

_SCALARS = ("numpy._core.multiarray.scalar", "numpy.core.multiarray.scalar")

MADE = ("numpy.dtype", *_SCALARS)
"""The functions that pickles have for numbers."""


def number(value: Record) -> Any:
    """The type or the number of a record.

    Raises:
        ValueError: it is something else of NumPy.
    """
    import numpy

    if value.is_new or value.items or value.keys:
        raise ValueError("it has a NumPy value that is no number")
    match value.name, value.arguments:
        case "numpy.dtype", (str() as code, False, True) if _TYPE.fullmatch(code):
            state, known = value.state, numpy.dtype(code)
            if state is None:
                return known
            order = state[1] if type(state) is tuple and len(state) == 8 else None
            if order in ("<", ">", "|") and state == (3, order, None, None, None, -1, -1, 0):
                return known.newbyteorder(order)
        case name, (Record() as typed, bytes() as content) if name in _SCALARS and value.state is None:
            if typed.name == "numpy.dtype" and len(content) == (known := number(typed)).itemsize:
                return numpy.frombuffer(content, known)[0]
    raise ValueError("it has a NumPy value that is no number")
