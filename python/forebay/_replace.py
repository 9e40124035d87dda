"""Replaces a file atomically.

The new file is written next to the old one, synced, and renamed over it: other programs see no
change before the rename. The folder is synced last, since the name is in it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from . import _access, _process
from ._errors import RouteUnavailable, of_system
from ._forebay import File
from ._types import Path, Place

_NAME_MAX = 255
"""Most bytes of a file name on Linux."""

_LARGE = 16 << 20
"""Bytes from which a place is a transfer of its own. Other sizes were not measured."""

_CANCEL_S = 30
"""Time limit for cancelled transfers to end. Only a drive that hangs takes longer."""

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
"""Errors of file systems that cannot sync a folder; they are ignored."""

_HINTS = {
    errno.ENOSPC: "free space on the file system: it holds both files until the rename",
    errno.EDQUOT: "free space within the quota: it covers both files until the rename",
    errno.EPERM: (
        "the file or its folder may be immutable or append-only (`lsattr`, `chattr -i`), or the "
        "folder lets only owners replace files (the sticky bit)"
    ),
    errno.EACCES: "the folder must be writable: the new file is made next to the old one",
}


def write(path: Path, places: list[Place], sync: bool) -> int:
    """Replaces a file by one with these bytes, and returns their number; gaps are zeros."""
    end = max((begin + length for begin, length, _ in places), default=0)
    total = sum(length for _, length, _ in places)
    with replaced(path, sync) as file:
        if 0 < end == total:
            file.preallocate(0, end)  # a full drive is reported before the work
        for group in by_device(places):
            put(file, group, sync)
    return total


def put(file: File, places: list[Place], sync: bool) -> None:
    """Writes places of one device to a new file.

    Places of 16 MiB or more that are synced afterwards go from a GPU to the drive with O_DIRECT if
    it is available: 8 places of 1 GiB at 2.3 GB/s and 0.04 CPU s/GB, through the page cache at 1.3
    to 1.6 GB/s and 0.34 (``benches/runs/2026-11-26-h100-variants``).
    """
    large = [place for place in places if sync and place[1] >= _LARGE]
    if large and _staged(file, large):
        places = [place for place in places if place[1] < _LARGE]
    file.writev(places)


def _staged(file: File, places: list[Place]) -> bool:
    """Writes places with O_DIRECT.

    False if O_DIRECT is unavailable: the caller must then write all places again.
    """
    transfers = []
    try:
        for begin, length, memory in places:
            transfers.append(file.start_write_from(memory, begin, size=length, route="staged"))
        for one in transfers:
            one.result()
    except BaseException as error:
        # The caller gives up the file, so they must not go on writing to it.
        for one in transfers:
            one.cancel()
        until = time.monotonic() + _CANCEL_S
        for one in transfers:
            with suppress(Exception):
                one.result(max(0.0, until - time.monotonic()))
        if isinstance(error, RouteUnavailable):
            return False
        raise
    return True


def by_device(places: Iterable[Place]) -> list[list[Place]]:
    """Groups places by device: the memory of one engine call is on one device."""
    groups: dict[Any, list[Place]] = {}
    for place in places:
        groups.setdefault(getattr(place[2], "device", None), []).append(place)
    return list(groups.values())


@contextmanager
def replaced(path: Path, sync: bool = True) -> Iterator[File]:
    """A new file, which becomes `path` when the block ends, and is removed if that fails.

    A link is followed: the file that it names is replaced. Owner, group, permissions and ACL are
    those of the old file, as far as `forebay._access.keep` can keep them. Without `sync` the bytes
    may not be on the drive when the file gets its name.
    """
    whole = os.path.realpath(os.fsdecode(path))
    parent, name = os.path.split(whole)
    # Everything is done in this one folder, even if the folder itself is renamed.
    with _tried(f"cannot open the folder of `{whole}`", parent):
        folder = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    old = None
    try:
        old = _old(folder, name, whole)
        with _tried(f"cannot create a file next to `{whole}`", parent):
            temporary, number = _new(folder, name, 0o666 if old is None else 0o600)
        try:
            try:
                with _process.open(number) as file:
                    yield file
                if old is not None:
                    _access.keep(old, number, whole)
                if sync:
                    with _tried(f"cannot sync the replacement of `{whole}`", whole):
                        os.fsync(number)
            except BaseException:
                with suppress(OSError):
                    os.close(number)
                raise
            with _tried(f"cannot close the replacement of `{whole}`", whole):
                os.close(number)
            with _tried(f"cannot replace `{whole}`", whole):
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _remove(temporary, folder)
            raise
        if sync:
            _sync(folder, parent, whole)
    finally:
        if old is not None:
            os.close(old)
        os.close(folder)


@contextmanager
def _tried(what: str, path: str) -> Iterator[None]:
    """Names the operation in errors of the system."""
    try:
        yield
    except OSError as error:
        raise of_system(error, what, path, _HINTS.get(error.errno or 0)) from None


def _old(folder: int, name: str, whole: str) -> int | None:
    """An `O_PATH` descriptor of the old file; `None` if there is no file."""
    try:
        old = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except FileNotFoundError:
        return None
    kind = os.fstat(old).st_mode
    if stat.S_ISREG(kind):
        return old
    os.close(old)
    if stat.S_ISDIR(kind):
        refused = OSError(errno.EISDIR, "it is a folder, not a file")
    else:
        refused = OSError(errno.EINVAL, "only a regular file can be replaced")
    raise of_system(refused, f"cannot replace `{whole}`", whole, "give the path of a file")


def _new(folder: int, name: str, permissions: int) -> tuple[str, int]:
    """Creates a file with a random name; returns the name and the descriptor."""
    ending = f".{secrets.token_hex(16)}.tmp"
    room = _NAME_MAX - len(ending) - 1
    start = os.fsdecode(os.fsencode(name)[:room])
    temporary = f".{start}{ending}"
    return temporary, os.open(temporary, _NEW, permissions, dir_fd=folder)


def _sync(folder: int, parent: str, whole: str) -> None:
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            what = f"the new file is in place as `{whole}`, but its folder cannot be synced"
            hint = "after a power cut the old file may be back: see the kernel's log (`dmesg`)"
            raise of_system(error, what, parent, hint) from None


def _remove(temporary: str, folder: int) -> None:
    with suppress(OSError):  # the first error counts
        os.unlink(temporary, dir_fd=folder)
