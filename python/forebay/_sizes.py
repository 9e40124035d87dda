"""Sizes as text."""

from __future__ import annotations

import re

from ._errors import refused, shortened

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_UNITS |= {f"{letter}iB": factor for letter, factor in _UNITS.items() if letter}
_UNITS |= {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


_TEXT = re.compile(r"\s*([0-9]{1,20})(?:\.([0-9]{1,20}))?\s*([A-Za-z]*)\s*")


def size_of(size: str | int, name: str = "size") -> int:
    """Bytes of `8GiB`, `64M` (powers of two), `1.5 GB` (of ten), or a plain number.

    Raises:
        RequestError: it is no size from 1 to 2**64 - 1; the error names the argument `name`.
    """
    text = f"{size:#x}" if isinstance(size, int) and size >> 64 else str(size)
    found = _TEXT.fullmatch(text)
    if found is not None and found[3] in _UNITS:
        part = found[2] or ""
        nbytes: int = int(found[1] + part) * _UNITS[found[3]] // 10 ** len(part)
        if 0 < nbytes < 1 << 64:
            return nbytes
    expected = "a size such as `8GiB`, `64M` or `8GB`, or a number of bytes"
    raise refused(f"`{name}` cannot be `{shortened(text)}`: it takes {expected}")
