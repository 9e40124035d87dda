"""The methods of loading layers to the GPU. Each is imported on use, torch too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from .way import Way


def _forebay() -> type[Way]:
    from .forebay import Forebay

    return Forebay


def _pinned() -> type[Way]:
    from .pinned import Pinned

    return Pinned


def _mapped_file() -> type[Way]:
    from .mapped_file import MappedFile

    return MappedFile


ALL: dict[str, Callable[[], type[Way]]] = {
    "forebay": _forebay,
    "two-buffers": _pinned,
    "mmap": _mapped_file,
}
