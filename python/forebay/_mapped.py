"""Files that this process has mapped: cutting one would destroy the mapped bytes."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator

from . import _errors
from ._types import Path

_MAPS = "/proc/self/maps"

_PROBE = "---s"
"""The permissions of the mapping that `_identity` makes; programs do not make such ones."""

_HINT = (
    "write another file and rename it over this one, as `forebay.torch.save` does, or copy what "
    "is mapped and drop the mapping first"
)


def refuse_cut(path: Path, mode: str) -> None:
    """Raises if opening `path` with `mode` would cut a file that this process has mapped.

    A mapped tensor or array may be what is about to be written. Without ``/proc`` nothing is known
    of mappings, and nothing is refused.
    """
    try:
        there = os.stat(path)
    except OSError:
        return  # opening the file reports it
    if not stat.S_ISREG(there.st_mode) or there.st_size == 0:
        return
    name = os.fsdecode(path)
    wanted = _identity(path, there)
    for address, permissions, identity, _ in _mappings():
        if identity == wanted and permissions != _PROBE:
            text = (
                f"cannot open `{name}` with mode `{mode}`: that cuts the file, and this process "
                f"has it mapped at 0x{address}"
            )
            about = {"kind": "request", "errno": errno.EBUSY, "message": text, "hint": _HINT}
            raise _errors.make({**about, "route": None, "path": name})


def _mappings() -> Iterator[tuple[str, str, tuple[str, str], bytes]]:
    """Address, permissions, device and inode, and path of each mapping of a file."""
    try:
        with open(_MAPS, "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        addresses, permissions, _, device, inode, *path = line.split(maxsplit=5)
        if inode != b"0":
            address = addresses.partition(b"-")[0].decode()
            identity = (device.decode(), inode.decode())
            yield address, permissions.decode(), identity, b"".join(path)


def _identity(path: Path, there: os.stat_result) -> tuple[str, str]:
    """The device and inode that the kernel shows for mappings of a file.

    On btrfs and overlayfs they are not those of `os.stat`, so a page is mapped to see them.
    """
    shown = f"{os.major(there.st_dev):02x}:{os.minor(there.st_dev):02x}", str(there.st_ino)
    try:
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            probe = mmap.mmap(number, 1, mmap.MAP_SHARED, 0)
        finally:
            os.close(number)
    except (OSError, ValueError):
        return shown
    with probe:
        # Another thread may have a probe as well.
        probes = [
            (identity, mapped)
            for _, permissions, identity, mapped in _mappings()
            if permissions == _PROBE
        ]
    if len({identity for identity, _ in probes}) == 1:
        return probes[0][0]
    real = os.fsencode(os.path.realpath(path))
    same = [identity for identity, mapped in probes if mapped == real]
    return same[0] if same else shown
