"""NumPy's numbers in pickles: what a pickle says of their types is checked, so no code runs."""

from __future__ import annotations

import pickle
import re
from typing import Any

_TYPE = re.compile("[biufc][0-9]{1,2}")
"""Kinds of numbers with their sizes, such as ``f8``. Other types may hold addresses."""


class _Dtype:
    """Takes the place of `numpy.dtype` in a pickle."""

    def __new__(cls, *given: Any) -> _Dtype:
        import numpy

        code, *how = given
        if type(code) is not str or not _TYPE.fullmatch(code) or how != [False, True]:
            raise pickle.UnpicklingError("it has a NumPy type that is no number")
        made = object.__new__(cls)
        made.of = numpy.dtype(code)
        return made

    of: Any

    def __setstate__(self, state: Any) -> None:
        order = state[1] if type(state) is tuple and len(state) == 8 else None
        if type(order) is not str or order not in ("<", ">", "|") or state != (3, order, None, None, None, -1, -1, 0):
            raise pickle.UnpicklingError("it has a NumPy type that is no number")
        self.of = self.of.newbyteorder(order)


def _scalar(dtype: Any, content: Any) -> Any:
    """Takes the place of the function that makes a number of its bytes."""
    import numpy

    if type(dtype) is not _Dtype or type(content) is not bytes or len(content) != dtype.of.itemsize:
        raise pickle.UnpicklingError("it has a NumPy value that is no number")
    return numpy.frombuffer(content, dtype.of)[0]


MADE: dict[str, Any] = {
    "numpy.dtype": _Dtype,
    "numpy._core.multiarray.scalar": _scalar,
    "numpy.core.multiarray.scalar": _scalar,
}
"""The functions that take the place of NumPy's own, by the names that pickles have for those."""
