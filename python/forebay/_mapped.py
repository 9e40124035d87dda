"""Files that this process has mapped: truncating such a file loses the mapped bytes."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator

from . import _errors
from ._errors import shown
from ._forebay import Descriptor
from ._types import Path

_MAPS = "/proc/self/maps"

_PROBE = "---s"
"""The permissions of the mapping that `_identity` makes; programs make no such mappings."""

_HINT = (
    "write another file and rename it over this one, as `forebay.torch.save` does, or copy the "
    "mapped bytes and drop the mapping first"
)

_Mapped = tuple[str, str, bytes]
"""Device, inode and path of a mapped file, as ``/proc/self/maps`` has them."""


def refuse_cut(path: Path, mode: str) -> None:
    """Raises if opening `path` with `mode` would truncate a file that this process has mapped.

    The bytes to write may be those of a mapped tensor or array. Without ``/proc`` the mappings are
    unknown, and nothing is refused.
    """
    file = _File(path)
    if file.size == 0:
        return
    for address, permissions, mapped in _mappings():
        if permissions != _PROBE and file.is_mapped_as(mapped):
            name = os.fsdecode(path)
            text = (
                f"cannot open `{shown(name)}` with mode `{mode}`: that truncates the file, and "
                f"this process has it mapped at 0x{address}"
            )
            about = {"kind": "request", "errno": errno.EBUSY, "message": text, "hint": _HINT}
            raise _errors.make({**about, "route": None, "path": name})


class _File:
    """A file by its path, which is compared with mapped files."""

    _identity: tuple[str, str] | None = None

    def __init__(self, path: Path) -> None:
        self.size = 0
        try:
            self._there = os.stat(path)
        except OSError:
            return  # opening or writing the file reports it
        if stat.S_ISREG(self._there.st_mode) and self._there.st_size > 0:
            self.size = self._there.st_size
            self._identity = _identity(path)

    def is_mapped_as(self, mapped: _Mapped) -> bool:
        """Whether a mapped file is this one."""
        if self.size == 0:
            return False
        device, inode, path = mapped
        if self._identity is not None:
            return (device, inode) == self._identity
        number = self._there.st_dev
        numbers = f"{os.major(number):02x}:{os.minor(number):02x}", str(self._there.st_ino)
        if (device, inode) == numbers:
            return True
        try:
            return os.path.samestat(os.stat(path.replace(rb"\012", b"\n")), self._there)
        except (OSError, ValueError):
            return False  # it has no name, like memory that processes share


def _mappings() -> Iterator[tuple[str, str, _Mapped]]:
    """Address, permissions and file of each mapping of a file."""
    try:
        with open(_MAPS, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return
    for line in lines[:-1]:
        addresses, permissions, _, device, inode, *path = line.split(maxsplit=5)
        if inode != b"0":
            address = addresses.partition(b"-")[0].decode()
            mapped = device.decode(), inode.decode(), b"".join(path)
            yield address, permissions.decode(), mapped


def _identity(path: Path) -> tuple[str, str] | None:
    """The device and inode that the kernel shows for mappings of a file; ``None`` if unknown.

    On btrfs and overlayfs they are not those of `os.stat`, so a page is mapped to find out.
    """
    try:
        with Descriptor(path, os.O_RDONLY | os.O_NONBLOCK) as number:
            probe = mmap.mmap(number, 1, mmap.MAP_SHARED, 0)
    except (OSError, ValueError):
        return None
    with probe:
        # Another thread may have a probe as well.
        probes = [mapped for _, permissions, mapped in _mappings() if permissions == _PROBE]
    if len({mapped[:2] for mapped in probes}) == 1:
        return probes[0][:2]
    real = os.fsencode(os.path.realpath(path))
    same = [mapped[:2] for mapped in probes if mapped[2] == real]
    return same[0] if same else None
