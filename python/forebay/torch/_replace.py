"""A file that takes the place of another at once, or not at all.

What is new is written beside what is old, brought to the drive, and given the old one's name:
the rename is the one moment at which anything changes for others. The folder is brought to the
drive last, since the name is in it.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from .. import _process
from .._forebay import File
from .._types import Path

_NAME_MAX = 255
"""Bytes of a name on Linux's file systems."""

_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def replaced(path: Path) -> Iterator[File]:
    """A new file, which becomes `path` when the block ends, and is removed where that fails.

    A link is followed: what it names is replaced. The new file has the old one's permissions.
    """
    whole = os.path.realpath(os.fsdecode(path))
    name = os.path.basename(whole)
    # By the folder's descriptor, so that all happens in one folder, whatever becomes of its name.
    folder = os.open(os.path.dirname(whole), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        permissions = _permissions(folder, name, whole)
        temporary, number = _new(folder, name, 0o666 if permissions is None else permissions)
        try:
            try:
                if permissions is not None:
                    os.fchmod(number, permissions)  # the process's mask may have taken some
                with _process.open(number) as file:
                    yield file
                os.fsync(number)
            finally:
                os.close(number)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            _remove(temporary, folder)
            raise
        os.fsync(folder)
    finally:
        os.close(folder)


def _permissions(folder: int, name: str, whole: str) -> int | None:
    """Those of the file that is there; `None` where there is none."""
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(there.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), whole)
    if not stat.S_ISREG(there.st_mode):
        text = "only a regular file can be replaced"
        raise OSError(errno.EINVAL, text, whole)
    return stat.S_IMODE(there.st_mode) & 0o777


def _new(folder: int, name: str, permissions: int) -> tuple[str, int]:
    """A file that nobody could have foreseen, and its descriptor."""
    ending = f".{secrets.token_hex(16)}.tmp"
    room = _NAME_MAX - len(ending) - 1
    start = os.fsdecode(os.fsencode(name)[:room])
    temporary = f".{start}{ending}"
    return temporary, os.open(temporary, _NEW, permissions, dir_fd=folder)


def _remove(temporary: str, folder: int) -> None:
    try:
        os.unlink(temporary, dir_fd=folder)
    except OSError:
        pass  # what went wrong before is what counts
