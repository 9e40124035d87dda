"""The requests of one call: pieces of files, in the order of the memory that they fill."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._forebay import Engine, File, ManyResult, ManyTransfer
    from .._types import Route


def _numbers() -> array[int]:
    """An empty array of whole numbers, which `read_many` reads in place."""
    return array("Q")


@dataclass(slots=True)
class Requests:
    """Requests; those adjacent in a file and in memory are merged."""

    files: list[File] = field(default_factory=list)
    _file_of: Any = field(default_factory=_numbers)
    _offsets: Any = field(default_factory=_numbers)
    _lengths: Any = field(default_factory=_numbers)
    _at: Any = field(default_factory=_numbers)

    def add(
        self, file: File, first: int, run: int, repeats: list[tuple[int, int]], at: int
    ) -> None:
        """Adds rows of `run` bytes that fill memory from `at` on, after all others.

        Args:
            file: the file.
            first: where the first row begins in it.
            run: bytes of a row.
            repeats: how often rows repeat, and the bytes from one row to the next, the outermost
                repetition first.
            at: where the first row's bytes go.
        """
        if not self.files or self.files[-1] is not file:
            self.files.append(file)
        number = len(self.files) - 1
        if not repeats and self._offsets and self._file_of[-1] == number:
            before = self._offsets[-1] + self._lengths[-1]
            if before == first and self._at[-1] + self._lengths[-1] == at:
                self._lengths[-1] += run
                return
        starts = [first]
        for count, step in repeats[:-1]:
            starts = [start + step * turn for start in starts for turn in range(count)]
        count, step = repeats[-1] if repeats else (1, run)
        for start in starts:
            self._offsets.extend(range(start, start + count * step, step))
        total = len(starts) * count
        self._at.extend(range(at, at + total * run, run))
        self._lengths.extend(repeat(run, total))
        self._file_of.extend(repeat(number, total))

    def cut(self, begin: int, end: int) -> Requests:
        """The requests that fill memory from `begin` to `end`."""
        low = max(bisect_right(self._at, begin) - 1, 0)
        high = bisect_left(self._at, end)
        part = Requests(
            self.files,
            self._file_of[low:high],
            self._offsets[low:high],
            self._lengths[low:high],
            self._at[low:high],
        )
        if low < high:
            part._trim(begin, end)
        return part

    def _trim(self, begin: int, end: int) -> None:
        self._lengths[-1] = min(self._lengths[-1], end - self._at[-1])
        before = min(max(begin - self._at[0], 0), self._lengths[0])
        self._at[0] += before
        self._offsets[0] += before
        self._lengths[0] -= before
        if self._lengths[0] == 0:
            for numbers in (self._file_of, self._offsets, self._lengths, self._at):
                del numbers[0]

    def moved(self, by: int) -> Requests:
        """The same requests for memory further on by `by` bytes."""
        self._at = array("Q", (at + by for at in self._at))
        return self

    def turned(self, place: int, end: int) -> Requests:
        """The same requests, those of memory from `place` to `end` first."""
        first, last = self.cut(place, end), self.cut(0, place)
        for own, more in (
            (first._file_of, last._file_of),
            (first._offsets, last._offsets),
            (first._lengths, last._lengths),
            (first._at, last._at),
        ):
            own.extend(more)
        return first

    def start(self, engine: Engine, memory: Any, route: Route | None = None) -> ManyTransfer:
        """Starts filling the memory."""
        return engine.start_read_many(
            files=self.files,
            file_of=self._file_of,
            offsets=self._offsets,
            lengths=self._lengths,
            target=memory,
            at=self._at,
            route=route,
        )

    def read_to_all(self, engine: Engine, memory: list[Any]) -> ManyResult:
        """Fills the memory of several GPUs with the same bytes."""
        return engine.read_many_to_all(
            files=self.files,
            file_of=self._file_of,
            offsets=self._offsets,
            lengths=self._lengths,
            targets=memory,
            at=self._at,
        )
