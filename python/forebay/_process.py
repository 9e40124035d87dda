"""The default engine of a process, and the calls that use it."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from ._forebay import Buffer, Engine, File

if TYPE_CHECKING:
    from ._types import Path

_lock = threading.Lock()
_engine: Engine | None = None


def default_engine() -> Engine:
    """The engine of this process, made by the first call.

    A forked child makes its own. The limits are those of the ``FOREBAY_`` variables.
    """
    global _engine
    engine = _engine
    if engine is None:
        with _lock:
            if _engine is None:
                _engine = Engine()
            engine = _engine
    return engine


def _in_child() -> None:
    # The parent's engine is left as it is: another thread may have held the lock.
    global _engine, _lock
    _engine, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def open(file: Path | int, mode: str = "r") -> File:
    """Opens a file: by its path, or by a descriptor, which stays the caller's.

    Modes: ``r`` and ``r+`` open an existing file, ``w`` truncates it or creates it, ``x`` creates
    it and fails if it exists, and ``rw`` keeps it or creates it. All modes are binary, so a ``b``
    changes nothing.
    """
    return default_engine().open(file, mode)


def read(path: Path, device: Any = "auto") -> Buffer:
    """Reads a whole file into new memory, by default on the first GPU, or on the host without one.

    ``None`` is the host. `Engine.read` has the same default.

    The buffer supports DLPack, and ``__cuda_array_interface__`` or the buffer protocol.
    """
    return default_engine().read(path, device)


def read_many(*requests: Any, **arrays: Any) -> Any:
    """`Engine.read_many` of the default engine."""
    return default_engine().read_many(*requests, **arrays)


def write_many(*requests: Any, **arrays: Any) -> Any:
    """`Engine.write_many` of the default engine."""
    return default_engine().write_many(*requests, **arrays)


def start_read_many(*requests: Any, **arrays: Any) -> Any:
    """`Engine.start_read_many` of the default engine."""
    return default_engine().start_read_many(*requests, **arrays)


def start_write_many(*requests: Any, **arrays: Any) -> Any:
    """`Engine.start_write_many` of the default engine."""
    return default_engine().start_write_many(*requests, **arrays)
