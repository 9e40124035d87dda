"""Writes safetensors files: a file is replaced as a whole, or unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._errors import shown
from .._replace import write
from .._types import Path, Place
from ._frameworks import Given, NotTensors, described
from ._header import BITS, HEADER_MAX, LENGTH, METADATA, are_texts

_ALIGNMENT = 8


class SharedMemory(ValueError, RuntimeError):
    """Tensors share memory: loaded again, they would be separate. safetensors has RuntimeError."""


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    sync: bool = True,
) -> int:
    """Replaces a file by one with these tensors, and returns how many bytes it has.

    A program that opens the file finds the old one whole or the new one whole, at any moment and
    after any crash. When the call returns, the new one is on the drive, under its name. If it
    raises, the old one is unchanged, and no other file is left. Only if the last step fails,
    syncing the folder, is the new one in place already, and the error says so. After a
    `KeyboardInterrupt` it is the old one or the new one.

    The new file keeps the old one's owner, group, permissions, ACL and attributes. If the system
    refuses some, permissions are reduced: no user may do more than before. Other names of the old
    file (hard links) keep the old bytes.

    The new file is written next to the old one, so the file system needs space for both. A process
    that is killed leaves what it had written as `.NAME.*.tmp`, and the next save of the same name
    removes it.

    A link is followed by the rules of the kernel's `fs.protected_symlinks`: not that of another
    user in a folder that all may write to.

    Args:
        tensors: of torch or NumPy, by name; on GPUs or on the host, each contiguous.
        filename: the file; a link is followed.
        metadata: strings for ``__metadata__``.
        sync: whether the bytes are on the drive before the file gets its name. Without it the call
            does not wait for the drive, and after a power cut the file may be empty or truncated.

    Raises:
        TypeError: a value is not a tensor, as in the state of an optimizer (also a `ValueError`,
            as in safetensors), or metadata is not a string.
        ValueError: a tensor is not contiguous, or shares its memory with another (also a
            `RuntimeError`), or names and metadata are longer than a header may be.
        forebay.Error: the file cannot be written.
    """
    return write(filename, places(tensors, metadata, f"to `{shown(filename)}`"), sync)


def bytes_of(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a file with these tensors."""
    found = places(tensors, metadata, "the tensors")
    data = bytearray(max(begin + nbytes for begin, nbytes, _ in found))
    for begin, nbytes, memory in found:
        memory = memory.cpu().numpy() if hasattr(memory, "cpu") else memory
        data[begin : begin + nbytes] = memoryview(memory).cast("B")
    return bytes(data)


def places(
    tensors: Mapping[str, Any], metadata: Mapping[str, str] | None, where: str
) -> list[Place]:
    """Header and tensors, and where each goes in the file."""
    if not isinstance(tensors, Mapping):
        kind = type(tensors).__name__
        raise NotTensors(f"`tensors` cannot be a `{kind}`: give tensors by name")
    if METADATA in tensors:
        raise ValueError(f"a tensor cannot have the name `{METADATA}`: the header uses it")
    about = sorted(
        (described(name, tensor) for name, tensor in tensors.items()),
        # As safetensors orders them: the longest elements first, so that all are aligned.
        key=lambda one: (-BITS[one.dtype], one.name),
    )
    refuse_shared(about)
    if metadata and not are_texts(metadata):
        raise TypeError("`metadata` takes strings by name: give numbers as `str(number)`")
    header: dict[str, Any] = {}
    if metadata is not None:
        header[METADATA] = dict(metadata)
    end = 0
    for one in about:
        offsets = [end, end + one.nbytes]
        header[one.name] = {"dtype": one.dtype, "shape": one.shape, "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > HEADER_MAX:
        raise ValueError(
            f"cannot save {where}: its header would have {len(text)} bytes, and "
            f"loaders take {HEADER_MAX}: shorten names and metadata, or save to several files"
        )
    head = len(text).to_bytes(LENGTH, "little") + text
    found: list[Place] = [(0, len(head), head)]
    for one in about:
        begin = len(head) + header[one.name]["data_offsets"][0]
        if one.nbytes:
            found.append((begin, one.nbytes, one.memory))
    return found


def refuse_shared(about: list[Given]) -> None:
    """Refuses tensors that share memory: loaded again, they would be separate."""
    last: Given | None = None
    for one in sorted(about, key=lambda one: (str(one.device), one.begin)):
        if one.nbytes == 0:
            continue
        if last and last.device == one.device and one.begin < last.begin + last.nbytes:
            raise SharedMemory(
                f"the tensors `{shown(last.name)}` and `{shown(one.name)}` share memory: omit one, "
                "or copy it"
            )
        last = one
