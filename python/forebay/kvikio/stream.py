"""Stream registration of KvikIO, which the engine does not need."""

from __future__ import annotations

import operator


def stream_register(raw_stream: int, flags: int) -> None:
    """Does nothing: every stream can order a transfer."""
    operator.index(raw_stream)
    operator.index(flags)


def stream_deregister(raw_stream: int) -> None:
    """Does nothing, like `stream_register`."""
    operator.index(raw_stream)
