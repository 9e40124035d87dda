"""The progress of a load, as a line of text."""

from __future__ import annotations

import sys
import time
from contextlib import suppress

_EVERY_S = 5.0
"""Seconds between two lines in a file; a terminal has one line that changes."""

_SETTLED_S = 0.5
"""Seconds until a rate is shown."""


_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


class Line:
    """Shows a line on stderr; without a usable stderr it shows nothing."""

    def __init__(self, name: str = "loading") -> None:
        self._name = name
        self._begun = time.monotonic()
        self._shown = self._begun
        self._ended = False

    def __call__(self, done: int, total: int) -> None:
        """Shows that `done` of `total` bytes have been read."""
        now = time.monotonic()
        with suppress(OSError, ValueError, AttributeError):  # closed, full, or none at all
            is_terminal = sys.stderr.isatty()
            is_end = done >= total
            if self._ended or not (is_terminal or is_end or now - self._shown >= _EVERY_S):
                return
            self._shown, self._ended = now, is_end
            text = self._text(done, total, now - self._begun)
            if is_terminal:
                sys.stderr.write(f"\r{text:<70}" + ("\n" if is_end else ""))
            else:
                sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def _text(self, done: int, total: int, seconds: float) -> str:
        percent = 100 if done >= total else done * 100 // total
        unit, size = next((one for one in _UNITS if total >= one[1]), _UNITS[-1])
        text = f"{self._name}: {percent:3} %, {done / size:.2f} of {total / size:.2f} {unit}"
        if seconds < _SETTLED_S or not done:
            return text
        text += f", {done / seconds / 1e9:.2f} GB/s"
        if done < total:
            left = round((total - done) * seconds / done)
            return f"{text}, {left // 60}:{left % 60:02} left"
        return f"{text}, {seconds:.1f} s"
