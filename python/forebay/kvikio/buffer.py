"""Memory registration of KvikIO, which the engine does not need."""

from __future__ import annotations

from typing import Any

from . import _memory


def memory_register(buf: Any) -> None:
    """Nothing: the engine moves bytes to any memory of a GPU at its full speed.

    Raises:
        TypeError: it is no memory.
    """
    if _memory.size_of(buf) is None and not _memory.is_on_gpu(buf):
        raise TypeError(f"a `{type(buf).__name__}` is no memory: give an array or a buffer")


def memory_deregister(buf: Any) -> None:
    """Nothing, as `memory_register`."""
    memory_register(buf)


def bounce_buffer_free() -> int:
    """Frees nothing, and returns 0: pinned memory is the engine's, and goes when that goes."""
    return 0
