"""Checkpoints: a file is replaced as a whole, or stays as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch  # type: ignore[import-not-found,unused-ignore]

from .._replace import replaced
from .._types import Path
from ._places import Place, Tensors, by_device, check, listed, places

Bytes: TypeAlias = bytes | bytearray | memoryview

Parts: TypeAlias = Tensors | Bytes | Sequence[torch.Tensor | Bytes]
"""Tensors, bytes, or both in a row, such as a header and the tensors that it tells of."""


def save_checkpoint(path: Path, parts: Parts) -> int:
    """Replaces a file by the bytes of `parts`, one after another, and returns how many those are.

    Whoever opens `path`, at any moment and after any crash, finds the old file whole or the new one
    whole. When the call returns, the new one is on the drive, under its name. If it raises, the old
    one is as it was, and nothing else is left; only if the last step fails, syncing the folder, is
    the new one in place already, and the error says so.

    The new file keeps the old one's owner, group, permissions, ACL and attributes. Where the system
    does not let it, permissions are cut, and nobody may do more than before. Other names of the old
    file (hard links) keep the old bytes.

    It is written next to the old one, so the file system needs room for both. A process that is
    killed leaves what it had written, as `.NAME.*.tmp`: remove such files when no process writes.
    """
    return write(path, _in_a_row(parts), sync=True)


def write(path: Path, wanted: list[Place], sync: bool) -> int:
    """Replaces a file by one with these bytes at these places, and returns how many those are."""
    end = max((begin + length for begin, length, _ in wanted), default=0)
    total = sum(length for _, length, _ in wanted)
    with replaced(path, sync) as file:
        if 0 < end == total:
            file.preallocate(0, end)  # a full drive is reported before the work
        return sum(file.writev(group).bytes for group in by_device(wanted))


def _in_a_row(parts: Parts) -> list[Place]:
    if isinstance(parts, bytes | bytearray | memoryview):
        parts = [parts]
    if isinstance(parts, torch.Tensor | Mapping):
        return places(parts, None)
    wanted: list[Place] = []
    begin = 0
    for number, part in enumerate(listed("parts", parts)):
        place = _place(number, part, begin)
        wanted += place
        begin += sum(length for _, length, _ in place)
    return wanted


def _place(number: int, part: Any, begin: int) -> list[Place]:
    if isinstance(part, torch.Tensor):
        check(f"part {number}", part)
        return places([part], begin)
    if isinstance(part, bytes | bytearray | memoryview):
        length = memoryview(part).nbytes
        return [(begin, length, part)] if length > 0 else []
    kind = type(part).__name__
    raise TypeError(f"part {number} is a `{kind}`: give tensors of torch, and bytes")
