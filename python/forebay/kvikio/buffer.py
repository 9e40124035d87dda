"""Memory registration of KvikIO, which the engine does not need."""

from __future__ import annotations

from typing import Any

from . import _memory


def memory_register(buf: Any) -> None:
    """Does nothing: the engine moves bytes to any memory of a GPU at full speed.

    Raises:
        TypeError: `buf` is not memory.
    """
    if _memory.size_of(buf) is None and not _memory.is_on_gpu(buf):
        raise TypeError(f"`buf` cannot be `{type(buf).__name__}`: give an array or a buffer")


def memory_deregister(buf: Any) -> None:
    """Does nothing, like `memory_register`."""
    memory_register(buf)


def bounce_buffer_free() -> int:
    """Returns 0 and frees nothing: pinned memory belongs to the engine, and is freed with it."""
    return 0
