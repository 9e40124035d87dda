"""Replaces a file atomically.

The new file is written next to the old one, synced, and renamed over it: other programs see no
change before the rename. The folder is synced last, since the name is in it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from . import _access, _process
from ._errors import Error, local, of_system, shown
from ._forebay import Descriptor, File, Replacement, remove_temporary
from ._types import Path, Place

if TYPE_CHECKING:
    from typing import Self

_LARGE = 16 << 20
"""Bytes from which a place is a transfer of its own. Other sizes were not measured."""

_CANCEL_S = 30
"""Time limit for cancelled transfers to end. Only a drive that hangs takes longer."""

_LOCK_S = 5
"""Time limit for the lock of a folder. A save holds it while it removes old files."""

_HINTS = {
    errno.EISDIR: "give the path of a file",
    errno.EINVAL: "give the path of a file",
    errno.ENOSPC: "free space on the file system: it holds both files until the rename",
    errno.EDQUOT: "free space within the quota: it covers both files until the rename",
    errno.EPERM: (
        "the file or its folder may be immutable or append-only (`lsattr`, `chattr -i`), or the "
        "folder lets only owners replace files (the sticky bit)"
    ),
    errno.EACCES: "the folder must be writable: the new file is made next to the old one",
}

_FOLLOW = "cannot follow the link"
"""How the steps begin that follow links."""

_LINK = (
    "it is in a folder that all may write to, and may lead anywhere: remove it, or save elsewhere"
)

_SYNCED = "cannot sync the folder of"
"""The last step: the file has its name already."""

_IN_PLACE = "after a power cut the old file may be back: see the kernel's log (`dmesg`)"


def write(path: Path, places: list[Place], sync: bool) -> int:
    """Replaces a file by one with these bytes, and returns their number; gaps are zeros."""
    end = max((begin + length for begin, length, _ in places), default=0)
    total = sum(length for _, length, _ in places)

    def fill(file: File) -> None:
        if 0 < end == total:
            file.preallocate(0, end)  # a full drive is reported before the work
        for group in by_device(places):
            put(file, group, sync)

    replace(path, fill, sync)
    return total


def replace(path: Path, fill: Callable[[File], object], sync: bool = True) -> None:
    """Makes a new file, has it filled, and gives it the name `path`; it is removed if that fails.

    A link is followed: the file that it names is replaced. Owner, group, permissions and ACL are
    those of the old file, as far as `forebay._access.keep` can keep them. Without `sync` the bytes
    may not be on the drive when the file gets its name.

    After a `KeyboardInterrupt` the file is the old one or the new one, as a whole.
    """
    path = local(path)
    # The object removes the file, wherever an exception comes from.
    with _named(path), Replacement(path) as new:
        with _process.open(new.number) as file:
            fill(file)
        if new.old is not None:
            _keep_access(new.old, new)
        new.commit(sync)


class Turn:
    """A save of several files, which other saves of the same kind see by a file with a lock.

    Args:
        path: the file that such a save replaces in its last step.
    """

    def __init__(self, path: Path) -> None:
        self._folder, name = os.path.split(os.fsdecode(path))
        self._name = f"{name}.save"
        self._path = os.path.join(self._folder, self._name)
        with _named(self._path), self._no_beginning():
            self._mark = Replacement(self._path)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Yields whether no other save runs; until the end of the block none begins.

        Without locks of files, a killed save counts as running.
        """
        with _named(self._path), self._no_beginning() as is_locked:
            yield is_locked and remove_temporary(self._folder or ".", self._name) == 1

    @contextmanager
    def _no_beginning(self) -> Iterator[bool]:
        """Locks the folder for a moment; yields whether that was possible or needless.

        The wait is bounded: every user who may read a folder may lock it. File systems without
        locks of folders do without, so two saves may begin and end at the same moment there.
        """
        folder = None
        with suppress(PermissionError):  # the folder cannot be listed
            folder = Descriptor(self._folder or ".", os.O_RDONLY | os.O_DIRECTORY)
        if folder is None:
            yield False
            return
        # Not by an `ExitStack`: if it is interrupted, a cycle of references keeps the caller's
        # objects, which then remove their files late.
        with folder as number:
            yield _locked(number, time.monotonic() + _LOCK_S)

    def close(self) -> None:
        """Ends the turn."""
        self._mark.__exit__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def _locked(number: int, until: float) -> bool:
    """Locks a folder until its descriptor is closed; false if another one holds the lock."""
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.002)
        except OSError:
            return True  # it has no locks
        else:
            return True


def sync_folder(path: str) -> None:
    """Waits until the names in a folder are on the drive, where the file system can sync folders."""
    with Descriptor(path, os.O_RDONLY | os.O_DIRECTORY) as number:
        try:
            os.fsync(number)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
                raise


def _keep_access(old: int, new: Replacement) -> None:
    try:
        _access.keep(old, new.number, new.path)
    except OSError as error:
        raise OSError(error.errno, "cannot give the new file the permissions of") from error


def put(file: File, places: list[Place], sync: bool) -> None:
    """Writes places of one device to a new file.

    Places of 16 MiB or more that are synced afterwards go to the drive with O_DIRECT: from a
    GPU 8 places of 1 GiB at 2.3 GB/s and 0.04 CPU s/GB, through the page cache at 1.3 to 1.6 GB/s
    and 0.34 (``benches/runs/2026-11-26-h100-variants``).
    """
    if sync:
        _past_cache(file, [place for place in places if place[1] >= _LARGE])
        places = [place for place in places if place[1] < _LARGE]
    file.writev(places)


def _past_cache(file: File, places: list[Place]) -> None:
    """Writes places with O_DIRECT, each by a transfer."""
    transfers = []
    try:
        for begin, length, memory in places:
            transfers.append(file.start_write_from(memory, begin, size=length, past_cache=True))
        for one in transfers:
            one.result()
    except BaseException:
        # The caller gives up the file, so they must not go on writing to it.
        for one in transfers:
            one.cancel()
        until = time.monotonic() + _CANCEL_S
        for one in transfers:
            with suppress(Exception):
                one.result(max(0.0, until - time.monotonic()))
        raise


def by_device(places: Iterable[Place]) -> list[list[Place]]:
    """Groups places by device: the memory of one engine call is on one device."""
    groups: dict[Any, list[Place]] = {}
    for place in places:
        groups.setdefault(getattr(place[2], "device", None), []).append(place)
    return list(groups.values())


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Names the step and the file in errors of the system."""
    try:
        yield
    except Error:
        raise
    except OSError as error:
        whole, step = os.fsdecode(path), error.strerror or "cannot replace"
        if error.filename is not None:
            raise
        number, name = error.errno or errno.EIO, shown(os.path.realpath(whole))
        text = "it is a folder, not a file" if number == errno.EISDIR else os.strerror(number)
        cause, hint = OSError(number, text), _HINTS.get(number)
        tried = f"{step} `{name}`"
        if step.startswith(_FOLLOW):
            tried, hint = f"{step} `{shown(whole)}`", _LINK if number == errno.EACCES else None
        elif step == _SYNCED:
            tried = f"the new file is in place as `{name}`, but its folder cannot be synced"
            hint, whole = _IN_PLACE, os.path.dirname(os.path.realpath(whole))
        raise of_system(cause, tried, whole, hint) from None
