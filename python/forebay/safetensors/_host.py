"""A file's tensors on the host, one after another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._pages import mapped
from ._plan import Part, can_map, naming, region

if TYPE_CHECKING:
    from .._forebay import Engine
    from ._frameworks import Framework
    from ._header import Stored
    from ._plan import Opened
    from ._slices import Index


_ALIGNED = 8
"""The longest element: bytes that begin at its multiples are aligned for each type."""


class HostFile:
    """An open file. Its tensors are its pages where that is possible.

    Args:
        window: bytes that are read ahead while tensors are requested in the order of the file.
    """

    def __init__(self, engine: Engine, framework: Framework, opened: Opened, window: int) -> None:
        self._engine, self._framework = engine, framework
        self._opened, self._window = opened, window
        self._pages = mapped(opened.file, framework)
        self._make = framework.maker(self._pages.memory) if self._pages else None

    def tensor(self, stored: Stored, index: Index = ...) -> Any:
        """A tensor, or a part of it."""
        pages, begin, end = self._pages, stored.offset, stored.offset + stored.nbytes
        is_plain = index is ... and stored.view is None and 0 not in stored.shape
        is_there = pages is not None and pages.has(begin, end)
        if self._make and is_there and is_plain and begin % _ALIGNED == 0:
            # As below, without steps that such a tensor does not need: models have thousands.
            self._opened.stamp.check()
            return self._make(stored, stored.shape, begin, end)
        self._framework.check(stored)
        wanted = region(stored, index, is_whole=True)
        if pages is None or not can_map(pages, wanted):
            return alone(self._engine, self._framework, self._opened, stored, index)
        part = Part(pages=pages)
        part.map(wanted)
        with naming([part]):
            for first, last in part.ranges(1 << 62):
                pages.fetch(first, last, self._window)
        self._opened.stamp.check()
        return next(part.made(self._framework, pages.memory))[1]


def alone(
    engine: Engine, framework: Framework, opened: Opened, stored: Stored, index: Index = ...
) -> Any:
    """Reads a tensor, or a part of it, into memory of its own."""
    framework.check(stored)
    part = Part()
    part.put(opened.file, region(stored, index))
    memory = framework.memory(part.nbytes)
    with naming([part]):
        part.requests.start(engine, memory).result()
    opened.stamp.check()
    return next(part.made(framework, memory))[1]
