"""The default engine of a process, and the calls that use it."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from ._forebay import Buffer, Engine, File

if TYPE_CHECKING:
    from typing import Unpack

    from ._forebay import ManyResult, ManyTransfer
    from ._types import Device, Path, ReadMany, Requests, WriteMany

_lock = threading.Lock()
_engine: Engine | None = None

inherited: list[object] = []
"""Groups of torch that a parent made before it forked this process."""


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
    if torch := sys.modules.get("torch.distributed.distributed_c10d"):
        inherited[:] = torch._world.pg_map


os.register_at_fork(after_in_child=_in_child)


def open(file: Path | int, mode: str = "r") -> File:
    """Opens a file: by its path, or by a descriptor, which stays the caller's.

    Modes: ``r`` and ``r+`` open an existing file, ``w`` truncates it or creates it, ``x`` creates
    it and fails if it exists, and ``rw`` keeps it or creates it. All modes are binary, so a ``b``
    changes nothing.
    """
    return default_engine().open(file, mode)


def read(path: Path, device: Device = None) -> Buffer:
    """Reads a whole file into new memory.

    By default (``auto``) the memory is on the first GPU, or on the host without one.

    The buffer supports DLPack, and ``__cuda_array_interface__`` or the buffer protocol.
    """
    return default_engine().read(path, device)


def read_many(requests: Requests | None = None, **arrays: Unpack[ReadMany]) -> ManyResult:
    """Reads many pieces of files in one call, by the default engine; returns when all have arrived.

    Args:
        requests: tuples ``(file, offset, length, target)``; or instead of these the arrays below.
        arrays: ``files`` is a list of files, and the number of each request's file is in
            ``file_of``; without that, there is one file. ``offsets`` and ``lengths`` are in bytes.
            The bytes of a request go to ``target``, at the offset that ``at`` has for it, or to an
            address of ``addresses`` on ``device``. ``exact`` makes an early end of a file an error.
            With ``check``, as by default, the first request that failed is raised; without it
            ``errors`` of the result has all of them. ``stream``, ``route`` and ``urgent`` are those
            of `forebay.File.read_into`.

    Raises:
        RequestError: a request is invalid; nothing has been read.
        Error: with ``check``, the error of the first request that failed.
    """
    return default_engine().read_many(requests, **arrays)


def write_many(requests: Requests | None = None, **arrays: Unpack[WriteMany]) -> ManyResult:
    """Writes many pieces to files in one call, by the default engine.

    Args:
        requests: tuples ``(file, offset, length, source)``; or instead of these arrays.
        arrays: as for `read_many`, with ``source`` in place of ``target``. With ``sync``, ``data``
            or ``all``, the bytes are on the drive when the call returns.

    Raises:
        As `read_many`.
    """
    return default_engine().write_many(requests, **arrays)


def start_read_many(
    requests: Requests | None = None, **arrays: Unpack[ReadMany]
) -> ManyTransfer:
    """Like `read_many`, without waiting: the transfer keeps the memory alive."""
    return default_engine().start_read_many(requests, **arrays)


def start_write_many(
    requests: Requests | None = None, **arrays: Unpack[WriteMany]
) -> ManyTransfer:
    """Like `write_many`, without waiting: the transfer keeps the memory alive."""
    return default_engine().start_write_many(requests, **arrays)
