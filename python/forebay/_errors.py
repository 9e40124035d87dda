"""Exceptions of the package."""

from __future__ import annotations

import errno as _errno
import os
import re
from collections.abc import Callable
from typing import Any

from ._forebay import system_hint

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


# Control characters, those that reverse the text direction, and what no encoding has.
_ACTS = [*range(32), *range(127, 160), 0x61C, 0x200E, 0x200F]
_ACTS += [*range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000)]
_SHORTHAND = re.compile(r"[A-Za-z0-9]{2,}:/|~$|~[^/]*/")
"""Paths that other programs expand, or find on other machines."""

_ESCAPED = {number: repr(chr(number))[1:-1] for number in _ACTS}


def shown(name: object) -> str:
    """A name for messages; characters that act on a terminal are escaped."""
    text = os.fsdecode(name) if isinstance(name, bytes | os.PathLike) else str(name)
    return text.translate(_ESCAPED)


def shortened(name: object) -> str:
    """A value from a file for messages, as `shown`, cut after a hundred characters."""
    text = str(name)
    return shown(text if len(text) <= 100 else f"{text[:100]}…")


class Error(OSError):
    """An error of the engine.

    Attributes:
        errno: the system's error number.
        strerror: the operation, its object, and the cause.
        filename: the file's path, or ``None``.
        hint: what to do, or ``None``.
        route: the required route, if it is not available.
        offset: the offset in the file of the bytes concerned.
        length: how many bytes are concerned.
        bytes: how many of them had been transferred.
        layer: the name of the layer concerned, or ``None``.
        report: the measurements of a command that failed, or ``None``.
    """

    hint: str | None = None
    route: str | None = None
    offset: int | None = None
    length: int | None = None
    bytes: int | None = None
    layer: str | None = None
    report: dict[str, Any] | None = None

    def __str__(self) -> str:
        text = self.strerror or super().__str__()  # without an errno, as `OSError(text)` shows it
        text = f"{text} ({self.hint})" if self.hint else text
        return shown(text)


class RequestError(Error, ValueError):
    """The call is invalid."""


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
    """There is no such GPU, or no GPU at all."""


class DeviceError(Error):
    """A GPU or its driver failed."""


class OutOfMemory(Error, MemoryError):
    """The host has not enough memory."""


class TimedOut(Error, TimeoutError):
    """A time limit expired."""


class Cancelled(Error):
    """The transfer was cancelled."""


class Forked(Error):
    """The object belongs to the parent process, from before a fork."""


class MissingFile(Error, FileNotFoundError):
    """There is no such file."""


class FileThere(Error, FileExistsError):
    """The file already exists."""


class NotPermitted(Error, PermissionError):
    """The user lacks the permission."""


class IsFolder(Error, IsADirectoryError):
    """The path is a folder, not a file."""


class NoFolder(Error, NotADirectoryError):
    """A part of the path is not a folder."""


class WouldBlock(Error, BlockingIOError):
    """The operation would block."""


class Interrupted(Error, InterruptedError):
    """A signal interrupted the operation."""


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


def make(about: dict[str, Any]) -> Error:
    """The exception for an error of the compiled part."""
    kind, number = _KINDS[about["kind"]]
    if about["errno"] is not None:
        number = about["errno"]
        if about["kind"] == "system":
            kind = _NUMBERS.get(number, Error)
    path = about["path"]
    made = kind(number, shown(about["message"]), path)
    made.hint, made.route = about["hint"], about["route"]
    made.offset, made.length = about.get("offset"), about.get("length")
    made.bytes, made.layer = about.get("bytes"), about.get("layer")
    return made


def refused(message: str) -> Error:
    """The exception for an invalid option, as the compiled part raises it."""
    about = dict.fromkeys(("errno", "path", "hint", "route"))
    return make({**about, "kind": "request", "message": message})


def of_panic(message: str | Error) -> Error:
    """The exception for a panic of the compiled part."""
    if isinstance(message, Error):
        return message  # Python 3.11 calls the class once more, with what it returned
    about = dict.fromkeys(("errno", "path", "route"))
    hint = "this is a bug of Forebay: please report it with the panic's message on stderr"
    return make({**about, "kind": "system", "message": f"internal error: {message}", "hint": hint})


def of_system(error: OSError, tried: str, path: str | bytes, hint: str | None = None) -> Error:
    """The exception for a system error that Python raised."""
    about = {"kind": "system", "message": f"{tried}: {error.strerror}", "errno": error.errno}
    hint = hint or system_hint(error.errno or 0, path)
    return make({**about, "hint": hint, "route": None, "path": path})


def local(path: Any) -> str:
    """A path as text. Addresses and ``~`` are refused: a save would make folders of these names.

    Raises:
        MissingFile: it is empty, an address such as ``s3://…``, or begins with ``~``.
        TypeError, ValueError: it is no path.
    """
    text = os.fsdecode(os.fsencode(path))
    if "\0" in text:
        raise ValueError("embedded null byte in the path")
    if not text or _SHORTHAND.match(text) and not os.path.lexists(text.partition("/")[0]):
        missing = OSError(_errno.ENOENT, os.strerror(_errno.ENOENT))
        raise of_system(missing, f"cannot open `{shown(text)}`", text)
    return text


def publish(module: str, found: dict[str, Any]) -> None:
    """Makes a package the module of its public classes and functions, as users name them."""
    for name in found["__all__"]:
        value = found.get(name)
        if getattr(value, "__module__", "").startswith(f"{module}._"):
            value.__module__ = module


def close(closing: Callable[[], None], raised: BaseException | None) -> None:
    """Closes something at the end of a ``with`` block; the block's own exception is raised."""
    try:
        closing()
    except Exception as error:
        if raised is None:
            raise
        raised.add_note(f"closing failed as well: {shown(error)}")
