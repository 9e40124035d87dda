"""Counts and drops pages in the page cache."""

from __future__ import annotations

import contextlib
import io
import numbers
import operator
import os
import warnings
from collections.abc import Iterator
from typing import Any

from .._errors import shown
from .._forebay import Descriptor
from . import _memory
from ._engines import engine
from ._errors import in_own_classes, missing

FileLike = os.PathLike[str] | str | int | io.IOBase

_DROP = "/proc/sys/vm/drop_caches"


def get_page_cache_info(file: FileLike, offset: int = 0, length: int = 0) -> tuple[int, int]:
    """Counts the pages of a file that are in the page cache, and all its pages.

    Args:
        file: its path, a descriptor, or a Python file.
        offset: the first byte; its page counts as a whole.
        length: the number of bytes; 0 means up to the end.

    Raises:
        RuntimeError: the kernel does not report it to this user, or on this file system.
    """
    offset, length = _memory.count("offset", offset), _memory.count("length", length)
    page = os.sysconf("SC_PAGE_SIZE")
    with _descriptor(file) as fd, in_own_classes():
        size = os.fstat(fd).st_size
        end = min(size, offset + length) if length else size
        if offset >= end:
            return 0, 0
        first, after = offset // page, -(-end // page)
        with engine().open(fd) as opened:
            known = opened.residency(first * page, (after - first) * page)
        if known["resident"] is None:
            # No other method leaves the pages unchanged: even a read with `RWF_NOWAIT` starts
            # read-ahead of missing pages.
            name = getattr(file, "name", file)
            text = f"cannot count pages of `{shown(name)}` in the page cache: {known['unknown']}"
            raise RuntimeError(text)
        return -(-int(known["resident"]) // page), after - first


def drop_file_page_cache(
    file: FileLike, offset: int = 0, length: int = 0, sync_first: bool = True
) -> None:
    """Has the kernel drop a file's pages that are completely within a range.

    Args:
        file: its path, a descriptor, or a Python file.
        offset: the first byte.
        length: the number of bytes; 0 means up to the end.
        sync_first: whether to write dirty pages first; dirty pages are not dropped.
    """
    offset, length = _memory.count("offset", offset), _memory.count("length", length)
    with _descriptor(file) as fd:
        if sync_first:
            os.fdatasync(fd)
        os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)


def drop_system_page_cache(
    reclaim_dentries_and_inodes: bool = True, sync_first: bool = True
) -> bool:
    """Drops the page cache of the whole machine; `False` if this user may not.

    It writes to ``/proc``. If that is refused, it uses ``sudo``, if that needs no password.
    """
    if sync_first:
        os.sync()
    number = "3" if reclaim_dentries_and_inodes else "1"
    try:
        with open(_DROP, "w", encoding="ascii") as file:
            file.write(number)
        return True
    except OSError:
        import subprocess

        command = ["sudo", "-n", "/sbin/sysctl", f"vm.drop_caches={number}"]
        with contextlib.suppress(OSError):
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        return False


def clear_page_cache(
    reclaim_dentries_and_inodes: bool = True, clear_dirty_pages: bool = True
) -> bool:
    """The old name of `drop_system_page_cache`."""
    warnings.warn("use `drop_system_page_cache`", FutureWarning, stacklevel=2)
    return drop_system_page_cache(reclaim_dentries_and_inodes, clear_dirty_pages)


@contextlib.contextmanager
def _descriptor(file: Any) -> Iterator[int]:
    if isinstance(file, io.IOBase):
        yield file.fileno()
        return
    if isinstance(file, numbers.Integral):
        yield operator.index(file)
        return
    if not isinstance(file, (str, os.PathLike)):
        text = f"`file` cannot be `{type(file).__name__}`: give a path, a descriptor or a file"
        raise ValueError(text)
    path = os.fspath(file)
    try:
        opened = Descriptor(path, os.O_RDONLY)
    except OSError as error:
        raise missing(error, f"cannot open `{shown(path)}`") from None
    with opened as number:
        yield number
