"""Exceptions of the package."""

from __future__ import annotations

import errno as _errno
import os
from collections.abc import Callable
from typing import Any

__all__ = [
    "Cancelled",
    "DeviceError",
    "EndOfFile",
    "Error",
    "FileChanged",
    "FileThere",
    "FileTruncated",
    "Forked",
    "Interrupted",
    "IsFolder",
    "MissingFile",
    "NoDevice",
    "NoFolder",
    "NotPermitted",
    "OutOfMemory",
    "RequestError",
    "RouteUnavailable",
    "TimedOut",
    "WouldBlock",
]


# Control characters, those that turn text around, and bytes that are no text.
_ACTS = [*range(32), *range(127, 160), 0x61C, 0x200E, 0x200F]
_ACTS += [*range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xDC80, 0xDD00)]
_ESCAPED = {number: repr(chr(number))[1:-1] for number in _ACTS}


def shown(name: object) -> str:
    """A name of a file, a tensor or a layer as messages have it: it acts on no terminal."""
    text = os.fsdecode(name) if isinstance(name, bytes | os.PathLike) else str(name)
    return text.translate(_ESCAPED)


class Error(OSError):
    """Something that the engine could not do.

    Attributes:
        errno: the system's number for it.
        strerror: what was tried, on what, and why it failed.
        filename: the file's path, or ``None``.
        hint: what to do about it, or ``None``.
        route: the route that was demanded, where that is the reason.
        offset: where the bytes that it was about begin in the file.
        length: how many there were.
        bytes: how many of them had arrived.
        layer: what the layer of a stream is called that it concerns, or ``None``.
        report: what a command had measured that failed, or ``None``.
    """

    hint: str | None = None
    route: str | None = None
    offset: int | None = None
    length: int | None = None
    bytes: int | None = None
    layer: str | None = None
    report: dict[str, Any] | None = None

    def __str__(self) -> str:
        text = self.strerror or ""
        text = f"{text} ({self.hint})" if self.hint else text
        return shown(text)


class RequestError(Error, ValueError):
    """A call that makes no sense."""


class EndOfFile(Error, EOFError):
    """The file ends before all requested bytes."""


class FileChanged(Error):
    """The file was written to while it was read.

    Bytes that were read before, and what was computed with them, may be wrong.
    """


class FileTruncated(FileChanged, EndOfFile):
    """The file became shorter while it was read."""


class RouteUnavailable(Error):
    """A required route is not available."""


class NoDevice(Error):
    """No such GPU, or none at all."""


class DeviceError(Error):
    """A GPU or its driver refused."""


class OutOfMemory(Error, MemoryError):
    """The host has no memory for it."""


class TimedOut(Error, TimeoutError):
    """A bound expired."""


class Cancelled(Error):
    """Somebody cancelled the transfer."""


class Forked(Error):
    """It belongs to the process that this one was forked from."""


class MissingFile(Error, FileNotFoundError):
    """There is no such file."""


class FileThere(Error, FileExistsError):
    """The file is there already."""


class NotPermitted(Error, PermissionError):
    """This user may not do it."""


class IsFolder(Error, IsADirectoryError):
    """It is a folder, and no file."""


class NoFolder(Error, NotADirectoryError):
    """A part of the path that should be a folder is none."""


class WouldBlock(Error, BlockingIOError):
    """It is not available at once."""


class Interrupted(Error, InterruptedError):
    """A signal was in the way."""


_KINDS: dict[str, tuple[type[Error], int]] = {
    "end_of_file": (EndOfFile, _errno.ENODATA),
    "file_changed": (FileChanged, _errno.ESTALE),
    "file_truncated": (FileTruncated, _errno.ESTALE),
    "route": (RouteUnavailable, _errno.EOPNOTSUPP),
    "no_device": (NoDevice, _errno.ENODEV),
    "folder": (IsFolder, _errno.EISDIR),
    "request": (RequestError, _errno.EINVAL),
    "device": (DeviceError, _errno.EIO),
    "memory": (OutOfMemory, _errno.ENOMEM),
    "timed_out": (TimedOut, _errno.ETIMEDOUT),
    "cancelled": (Cancelled, _errno.ECANCELED),
    "forked": (Forked, _errno.EPERM),
    "system": (Error, _errno.EIO),
}

_NUMBERS: dict[int, type[Error]] = {
    _errno.ENOENT: MissingFile,
    _errno.EEXIST: FileThere,
    _errno.EACCES: NotPermitted,
    _errno.EPERM: NotPermitted,
    _errno.EISDIR: IsFolder,
    _errno.ENOTDIR: NoFolder,
    _errno.EAGAIN: WouldBlock,
    _errno.EINTR: Interrupted,
    _errno.ETIMEDOUT: TimedOut,
}


_HINTS = {
    _errno.ENOENT: "look at the path's spelling; a relative path starts at this folder",
    _errno.EISDIR: "give a regular file or a block device",
    _errno.EEXIST: "give another path, or open it with `rw`, which keeps it, or `w`, which cuts it",
}


def make(about: dict[str, Any]) -> Error:
    """The exception for an error of the compiled part."""
    kind, number = _KINDS[about["kind"]]
    if about["errno"] is not None:
        number = about["errno"]
        if about["kind"] == "system":
            kind = _NUMBERS.get(number, Error)
    path = about["path"]
    made = kind(number, shown(about["message"]), path)
    hint = _HINTS.get(number) if about["kind"] == "system" else None
    made.hint, made.route = about["hint"] or hint, about["route"]
    made.offset, made.length = about.get("offset"), about.get("length")
    made.bytes, made.layer = about.get("bytes"), about.get("layer")
    return made


def refused(message: str) -> Error:
    """The exception for an option that cannot be what it is, as the compiled part raises it."""
    about = dict.fromkeys(("errno", "path", "hint", "route"))
    return make({**about, "kind": "request", "message": message})


def of_system(error: OSError, tried: str, path: str | bytes, hint: str | None = None) -> Error:
    """The exception for what the system refused to Python itself."""
    about = {"kind": "system", "message": f"{tried}: {error.strerror}", "errno": error.errno}
    return make({**about, "hint": hint, "route": None, "path": path})


def close(closing: Callable[[], None], raised: BaseException | None) -> None:
    """Closes something at the end of a ``with`` block, whose own exception is raised first."""
    try:
        closing()
    except Exception as error:
        if raised is None:
            raise
        raised.add_note(f"closing failed as well: {shown(error)}")
