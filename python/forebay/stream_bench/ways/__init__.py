"""The ways in which layers come to the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .forebay import Forebay
from .kvikio import KvikIO
from .mapped_file import MappedFile
from .pinned import Pinned

if TYPE_CHECKING:
    from .way import Way

ALL: dict[str, type[Way]] = {
    "forebay": Forebay,
    "two-buffers": Pinned,
    "mmap": MappedFile,
    "kvikio": KvikIO,
}
