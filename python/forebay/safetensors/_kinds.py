"""Detects the kind of a file by its first bytes."""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING

from . import _archive, _header
from ._header import HEADER_MAX, LENGTH, FormatError, Header, refused

if TYPE_CHECKING:
    from .._forebay import File

_HEAD = 4096
"""Bytes at the start that show the kind of a file."""

_ZIP = b"PK\x03\x04"

_PICKLE = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""The number at the start of files in the format of torch before version 1.6."""

_PICKLE_MAX = 11
"""Most bytes before it: the protocol and the length of a frame."""

_PICKLES = [b"\x80" + bytes([protocol]) for protocol in range(2, 6)]
"""The starts of files of `pickle`."""

_PICKLE_STEPS = 16
"""So many valid operations at the start of a file make it a pickle, or all of a shorter one."""

_TAR = (b"ustar", 257)
"""Bytes of a tar archive and where they are; torch before version 0.2 wrote such files."""

_MAGICS = {
    b"\x89HDF": "HDF5",
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"7z\xbc\xaf": "7-Zip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"\x93NUMPY": "NumPy",
    b"%PDF": "PDF",
}
"""How files of other kinds begin."""

_CONVERT = "convert it: `save_file(torch.load(path, weights_only=True), new_path)`"

_TRUST = "read it by `pickle`, if you trust it, and save its tensors"


def header(file: File, path: str) -> Header:
    """Where the tensors are in a file of safetensors or of `torch.save`.

    Raises:
        FormatError: it is of neither kind, or broken.
    """
    head = _head(file)
    if _is_safetensors(head):
        return _header.read(file, path)
    if head.startswith(_ZIP):
        if _archive.is_torch(head) is None:
            raise refused(path, "it is a file of `numpy.savez`", "call `numpy.load`")
        return _archive.read(file, path)
    if _is_old(head) or head.startswith(*_TAR):
        raise refused(path, "it has the format of torch before 1.6", _CONVERT)
    if head[:2] in _PICKLES and _is_pickle(head, file.size):
        raise refused(path, "it is a file of `pickle`", _TRUST)
    if found := _other(head):
        raise refused(path, *found)
    return _header.read(file, path)


def refuse_formats(file: File) -> None:
    """Refuses a file with a header, where the plain elements of a tensor are expected.

    Raises:
        FormatError: it is a file of safetensors, `torch.save`, `pickle` or `numpy.savez`.
    """
    head = _head(file)
    of_torch = _archive.is_torch(head) if head.startswith(_ZIP) else False
    load_file = "call `forebay.load_file`"
    if _is_old(head):
        kind, hint = "`torch.save`", _CONVERT
    elif of_torch:
        kind, hint = "`torch.save`", load_file
    elif of_torch is None:
        kind, hint = "`numpy.savez`", "call `numpy.load`"
    elif _is_safetensors(head) and _is_whole(file):
        kind, hint = "safetensors", load_file
    elif head[:2] in _PICKLES and _is_pickle(head, file.size):
        kind, hint = "`pickle`", _TRUST
    else:
        return
    raise refused(str(file.name), f"it is a file of {kind}, not plain elements", hint)


def _head(file: File) -> bytes:
    head = bytearray(min(file.size, _HEAD))
    file.read_into(head)
    return bytes(head)


def _is_safetensors(head: bytes) -> bool:
    """Whether the header of a safetensors file may begin here."""
    length = int.from_bytes(head[:LENGTH], "little")
    return length <= HEADER_MAX and head[LENGTH : LENGTH + 1] == b"{"


def _is_whole(file: File) -> bool:
    try:
        _header.read(file, str(file.name))
    except FormatError:
        return False
    return True


def _is_old(head: bytes) -> bool:
    """Whether a file begins as those of torch before version 1.6."""
    return head[:2] in _PICKLES and _PICKLE in head[: _PICKLE_MAX + len(_PICKLE)]


def _is_pickle(head: bytes, size: int) -> bool:
    """Whether a file begins with operations of `pickle` that follow from each other.

    Numbers are few valid operations, or repeat the one with which a pickle begins.
    """
    depth = 0
    try:
        for steps, (code, _, position) in enumerate(pickletools.genops(head), 1):
            needed = len(code.stack_before) if pickletools.markobject not in code.stack_before else 1
            if (code.name == "PROTO") != (steps == 1) or depth < needed:
                return False
            depth += len(code.stack_after) - needed
            if code.code == ".":
                return position == size - 1
            if steps == _PICKLE_STEPS:
                return True
    except Exception:  # the module has no error of its own
        return False
    return False


def _other(head: bytes) -> tuple[str, str] | None:
    """What a file is that is often in the place of a model, and what to do."""
    start = head.lstrip()[:64].lower()
    if head.startswith(b"version https://git-lfs"):
        return "it is a pointer of Git LFS, not the file itself", "run `git lfs pull`"
    if head.startswith(b"GGUF"):
        return "it is a GGUF file", "llama.cpp loads it; give the safetensors of the model"
    if start.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "it is a web page", "download the file again, logged in if its site requires that"
    if start[:1] in (b"{", b"[") and b"\0" not in head:
        return "it is a text in JSON", "give the file with the tensors"
    for magic, name in _MAGICS.items():
        if head.startswith(magic):
            return f"it is a file of {name}", "give the safetensors of the model, or unpack it"
    return None
