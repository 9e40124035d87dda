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


class HostFile:
    """An open file. Its tensors are its pages where that is possible.

    Args:
        window: bytes that are read ahead while tensors are requested in the order of the file.
    """

    def __init__(self, engine: Engine, framework: Framework, opened: Opened, window: int) -> None:
        self._engine, self._framework = engine, framework
        self._opened, self._window = opened, window
        self._pages = mapped(opened.file, framework)

    def tensor(self, stored: Stored, index: Index = ...) -> Any:
        """A tensor, or a part of it."""
        wanted = region(stored, index, is_whole=True)
        if self._pages is None or not can_map(self._pages, wanted):
            return alone(self._engine, self._framework, self._opened, stored, index)
        part = Part(pages=self._pages)
        part.map(wanted)
        with naming([part]):
            for begin, end in part.ranges(1 << 62):
                self._pages.fetch(begin, end, self._window)
        self._opened.stamp.check()
        return next(part.made(self._framework, self._pages.memory))[1]


def alone(
    engine: Engine, framework: Framework, opened: Opened, stored: Stored, index: Index = ...
) -> Any:
    """Reads a tensor, or a part of it, into memory of its own."""
    part = Part()
    part.add(opened.file, stored, index)
    memory = framework.memory(part.nbytes)
    with naming([part]):
        part.requests.start(engine, memory).result()
    opened.stamp.check()
    return next(part.made(framework, memory))[1]
