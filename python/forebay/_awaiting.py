"""``await`` of a transfer; imported when the first one is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

# How long a cancelled await waits, in seconds, until nothing uses the transfer's memory any more.
_DRAIN_MAX = 1.0

if TYPE_CHECKING:
    from ._forebay import ManyTransfer, Transfer


def steps(transfer: Transfer | ManyTransfer) -> Generator[Any, None, Any]:
    """The steps of an event loop until the transfer has ended."""
    return _ended(transfer).__await__()


async def _ended(transfer: Transfer | ManyTransfer) -> Any:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not ended.done():
            ended.set_result(None)

    def notify(_: object) -> None:
        try:
            loop.call_soon_threadsafe(wake)
        except RuntimeError:
            pass  # the loop has been closed

    transfer.add_done_callback(notify)
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        transfer.cancel()
        await asyncio.wait([ended], timeout=_DRAIN_MAX)
        raise
    return transfer.result()
