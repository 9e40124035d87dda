"""Whether the kernel holds a file's bytes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def evict(path: Path) -> None:
    """Has the kernel forget the file's bytes."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def touch(path: Path) -> None:
    """Has the kernel hold the file's bytes."""
    part = bytearray(64 << 20)
    with path.open("rb", buffering=0) as file:
        while file.readinto(part):
            pass
