"""``await`` of a transfer; imported when the first one is awaited."""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

# How long a cancelled await waits, in seconds, until nothing uses the transfer's memory any more.
_DRAIN_MAX = 1.0

# So many awaits of ended transfers return before one lets other tasks run: 16 reads of 64 KiB take
# 0.2 ms.
_AT_ONCE_MAX = 15
_at_once = 0

if TYPE_CHECKING:
    from ._forebay import BlockCall, ManyTransfer, Transfer


class _Ends:
    """The ended transfers of a loop's awaits. One call wakes the loop for all of them."""

    def __init__(self) -> None:
        self._ended: deque[asyncio.Future[None]] = deque()
        self._is_called = False

    def add(self, loop: asyncio.AbstractEventLoop, ended: asyncio.Future[None]) -> None:
        """Called by the thread that runs callbacks."""
        self._ended.append(ended)
        if self._is_called:
            return  # the call has not begun, so it finds this one too
        self._is_called = True
        try:
            loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            pass  # the loop has been closed

    def _wake(self) -> None:
        self._is_called = False
        while self._ended:
            ended = self._ended.popleft()
            if not ended.done():
                ended.set_result(None)


_ENDS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Ends] = weakref.WeakKeyDictionary()


def steps(transfer: Transfer | ManyTransfer | BlockCall) -> Generator[Any, None, Any]:
    """The steps of an event loop until the transfer has ended."""
    global _at_once
    if not transfer.done():
        yield from _ended(transfer).__await__()
    elif _at_once < _AT_ONCE_MAX:
        _at_once += 1
    else:
        _at_once = 0
        yield  # lets the loop's other tasks run
    return transfer.result()


async def _ended(transfer: Transfer | ManyTransfer | BlockCall) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    ends = _ENDS.setdefault(loop, _Ends())
    transfer.add_done_callback(lambda _: ends.add(loop, ended))
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        transfer.cancel()
        await asyncio.wait([ended], timeout=_DRAIN_MAX)
        raise
