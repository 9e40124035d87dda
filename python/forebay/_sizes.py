"""Sizes as text."""

from __future__ import annotations

import re

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_UNITS |= {f"{letter}iB": factor for letter, factor in _UNITS.items() if letter}
_UNITS |= {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def size_of(text: str | int) -> int:
    """Bytes of `8GiB`, `64M` (powers of two), `1.5 GB` (of ten), or a plain number."""
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
    if found is None or found[2] not in _UNITS or float(found[1]) * _UNITS[found[2]] < 1:
        raise ValueError(f"invalid size `{text}`: write it as `8GiB`, `64M`, `8GB` or in bytes")
    return int(float(found[1]) * _UNITS[found[2]])
