"""Which kind of file it is, by its first bytes."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from .._errors import shown
from . import _archive, _header
from ._header import HEADER_MAX, LENGTH, FormatError, Header

if TYPE_CHECKING:
    from .._forebay import File

_HEAD = 512
"""Bytes that show the kind of a file."""

_ZIP = b"PK\x03\x04"

_PICKLE = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How the files begin that torch wrote before version 1.6."""

_TAR = (257, b"ustar")
"""Where an archive of tar has these bytes; so wrote torch before version 0.2."""

_CONVERT = "convert it: `save_file(torch.load(path, weights_only=True), new_path)`"


def header(file: File, path: str) -> Header:
    """Where the tensors are in a file of safetensors or of `torch.save`.

    Raises:
        FormatError: it is none, or broken.
    """
    head = _head(file)
    if _is_zip(head):
        return _archive.read(file, path)
    at, magic = _TAR
    if head.startswith(_PICKLE) or head.startswith(magic, at):
        text = f"cannot load `{shown(path)}`: a version of torch before 1.6 wrote it"
        made = FormatError(errno.EINVAL, text, path)
        made.hint = _CONVERT
        raise made
    return _header.read(file, path)


def refuse_formats(file: File) -> None:
    """Refuses a file whose first bytes are no elements of a tensor, but a header.

    Raises:
        FormatError: it is a file of safetensors or of `torch.save`.
    """
    head, path = _head(file), str(file.name)
    if _is_zip(head) and _archive.is_archive(file) or _is_safetensors(head, file, path):
        kind = "`torch.save`" if _is_zip(head) else "safetensors"
        hint = "call `forebay.safetensors.load_file`"
    elif head.startswith(_PICKLE):
        kind, hint = "`torch.save`", _CONVERT
    else:
        return
    text = f"cannot load `{shown(path)}` as elements of a tensor: it is a file of {kind}"
    made = FormatError(errno.EINVAL, text, path)
    made.hint = hint
    raise made


def _head(file: File) -> bytes:
    head = bytearray(min(file.size, _HEAD))
    file.read_into(head)
    return bytes(head)


def _is_zip(head: bytes) -> bool:
    return head.startswith(_ZIP) and _length(head) > HEADER_MAX


def _is_safetensors(head: bytes, file: File, path: str) -> bool:
    if head[LENGTH : LENGTH + 1] != b"{" or _length(head) > HEADER_MAX:
        return False
    try:
        _header.read(file, path)
    except FormatError:
        return False
    return True


def _length(head: bytes) -> int:
    """The length of the header of a safetensors file."""
    return int.from_bytes(head[:LENGTH], "little")
