"""Memory that the process may still use: control groups kill instead of refusing."""

from __future__ import annotations

import errno
import time

from . import _forebay
from ._errors import OutOfMemory, shown

_SPARE = 32 << 20
"""Bytes that are left for everything else: page tables, headers, the interpreter."""

_PLENTY, _KNOWN_S = 256 << 20, 0.01
"""Limits are read again after this time, or if this much would not be left: a read takes as long as
a small tensor."""

_known = (0.0, 0)
"""Until when bytes are known to be left, and how many."""


def fitting(window: int) -> int:
    """A window, or half of what a limit leaves if that is less: copies need the other half."""
    found = _forebay.memory_left()
    return window if found is None else max(min(window, (found[0] - _SPARE) // 2), 1)


def require(nbytes: int, tried: str) -> None:
    """Raises if a limit has no room for so many bytes of memory.

    Raises:
        OutOfMemory: with the numbers.
    """
    global _known
    until, left = _known
    now = time.monotonic()
    if not nbytes or (now < until and nbytes + _PLENTY <= left):
        _known = until, left - nbytes
        return
    found = _forebay.memory_left()
    _known = now + _KNOWN_S, (1 << 64 if found is None else found[0]) - nbytes
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
