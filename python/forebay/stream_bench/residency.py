"""Evicts a file from the page cache, or reads it into it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def evict(path: Path) -> None:
    """Evicts the file from the page cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def touch(path: Path) -> None:
    """Reads the file into the page cache."""
    part = bytearray(64 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(part):
            pass
