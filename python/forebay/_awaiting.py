"""``await`` of a transfer; imported when the first one is awaited."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from ._forebay import Awaits

# How long a cancelled await waits, in seconds, until nothing uses the transfer's memory any more.
_DRAIN_MAX = 1.0

# So many awaits of ended transfers return before one lets other tasks run: 16 reads of 64 KiB take
# 0.2 ms.
_AT_ONCE_MAX = 15
_at_once = 0

if TYPE_CHECKING:
    from ._forebay import BlockCall, ManyTransfer, Transfer

# By `id` of the loop, which owns them. One event wakes a loop for all its awaits that can go on.
_AWAITS: weakref.WeakValueDictionary[int, Awaits] = weakref.WeakValueDictionary()


def steps(transfer: Transfer | ManyTransfer | BlockCall) -> Generator[Any, None, Any]:
    """The steps of an event loop until the transfer has ended."""
    global _at_once
    if not transfer.done():
        try:
            yield from _end_of(transfer)
        except asyncio.CancelledError:
            transfer.cancel()
            yield from asyncio.wait([_end_of(transfer)], timeout=_DRAIN_MAX).__await__()
            transfer.done()  # returns its memory
            raise
    elif _at_once < _AT_ONCE_MAX:
        _at_once += 1
    else:
        _at_once = 0
        yield  # lets the loop's other tasks run
    return transfer.result()


def _end_of(transfer: Transfer | ManyTransfer | BlockCall) -> asyncio.Future[None]:
    """A future that has a result when the transfer has ended."""
    loop = asyncio.get_running_loop()
    awaits = _AWAITS.get(id(loop))
    if awaits is None:
        awaits = _AWAITS[id(loop)] = Awaits()
        loop.add_reader(awaits.fileno(), _wake, awaits)
    ended: asyncio.Future[None] = loop.create_future()
    awaits.add(transfer, ended)
    return ended


def _wake(awaits: Awaits) -> None:
    for ended in awaits.take():
        if not ended.done():
            ended.set_result(None)
