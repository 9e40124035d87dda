"""Memory that the process may still use: control groups kill instead of refusing."""

from __future__ import annotations

import errno

from . import _forebay
from ._errors import OutOfMemory, shown

_SPARE = 32 << 20
"""Bytes that are left for everything else: page tables, headers, the interpreter."""


def fitting(window: int) -> int:
    """A window, or half of what a limit leaves if that is less: copies need the other half."""
    found = _forebay.memory_left()
    return window if found is None else max(min(window, (found[0] - _SPARE) // 2), 1)


def require(nbytes: int, tried: str) -> None:
    """Raises if a limit has no room for so many bytes of memory.

    Raises:
        OutOfMemory: with the numbers.
    """
    found = _forebay.memory_left() if nbytes else None
    if found is not None and nbytes + _SPARE > found[0]:
        limit = found[1]
        text = (
            f"{tried}: it takes {_shown(nbytes)} of memory, and {_shown(_SPARE)} have to be left, "
            f"but `{shown(limit)}` leaves {_shown(found[0])}"
        )
        made = OutOfMemory(errno.ENOMEM, text)
        made.hint = "raise that limit, or load fewer tensors at once: `names=`, `iterate`"
        raise made


def _shown(nbytes: int) -> str:
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB")):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes} bytes"
