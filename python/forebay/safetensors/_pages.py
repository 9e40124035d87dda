"""The pages of a file as memory: tensors on the host need no copy."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

from .. import _forebay
from .._errors import Error, FileChanged, of_system, shown

if TYPE_CHECKING:
    from .._forebay import File
    from ._frameworks import Framework


class Stamp:
    """The state of a file when it was opened. No new file gets its number meanwhile."""

    def __init__(self, file: File) -> None:
        self._path = os.fsdecode(file.name)
        self._file = file
        self._stamp = _forebay.FileStamp(file)
        self.identity = self._stamp.identity

    def check(self) -> None:
        """Raises if the file may have been written to since then.

        Raises:
            FileChanged: tensors may have bytes of both states.
        """
        if self._stamp.is_outdated(self._file):
            hint = "load it when it is complete; write such files by `save_file`, in one step"
            raise changed(self._path, "it was written to during the load", hint)

    def is_in_place(self) -> bool:
        """Whether its path still leads to the file, which was not written to."""
        try:
            with self._file.engine.open(self._path) as now:
                return not self._stamp.is_outdated(now)
        except Error:
            return False

    def check_place(self) -> None:
        """Raises if the file was replaced.

        Raises:
            FileChanged: another reader may have the new one.
        """
        if not self.is_in_place():
            raise changed(self._path, "a save replaced it when the load began", "load it again")


def changed(path: str, why: str, hint: str) -> FileChanged:
    """The error for a file that changed during a load."""
    made = FileChanged(errno.ESTALE, f"cannot load `{shown(path)}`: {why}", path)
    made.hint = hint
    return made


class Pages:
    """A private mapping of a file.

    Writing to it changes no file. While its bytes are in use, a file that is written to may show
    there, and access beyond the end of a file that was truncated ends the process with SIGBUS.

    Attributes:
        memory: the bytes of the file.
    """

    def __init__(self, file: File, mapped: _forebay.Pages) -> None:
        self._file, self._mapped = file, mapped
        self.memory = memoryview(mapped)
        # The range that was read last; threads replace it as a whole.
        self._span = (0, 0)

    def has(self, begin: int, end: int) -> bool:
        """Whether bytes are among those that were read last."""
        first, last = self._span
        return first <= begin and end <= last

    def fetch(self, begin: int, end: int, ahead: int = 0) -> None:
        """Reads bytes into the page cache, if they are not there.

        If the range continues the one before, up to `ahead` bytes more are read, and as many are
        started.
        """
        if self.has(begin, end):
            return
        first, last = self._span
        follows = first <= begin <= last
        stop = min(max(end, begin + ahead), len(self._mapped)) if follows else end
        try:
            self._mapped.fetch(begin, stop)
        except OSError as error:
            self._find_cause(begin, stop)
            tried = f"cannot load `{shown(self._file.name)}`"
            raise of_system(error, tried, str(self._file.name)) from error
        self._span = (begin, stop)
        if follows and ahead:
            self._mapped.read_ahead(stop, stop + ahead)

    def _find_cause(self, begin: int, end: int) -> None:
        """Reads the bytes that could not be mapped in; that raises the file's own error."""
        piece = bytearray(min(end - begin, 4 << 20))
        for at in range(begin, end, len(piece)):
            self._file.read_into(memoryview(piece)[: end - at], at)


def mapped(file: File, framework: Framework) -> Pages | None:
    """The pages of a file; ``None`` where the file system or the kernel offers none.

    Raises:
        forebay.Error: a limit such as `RLIMIT_AS` has no room for the addresses.
    """
    if not framework.is_on_host:
        return None
    try:
        found = _forebay.Pages(file, file.size)
    except Error:
        raise
    except OSError as error:
        if error.errno == errno.ENOMEM:
            hint = "raise the limit of address space (`ulimit -v`), or load fewer files at once"
            tried = f"cannot map `{shown(file.name)}`"
            raise of_system(error, tried, str(file.name), hint) from error
        return None
    return Pages(file, found)
