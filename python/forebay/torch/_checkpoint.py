"""Checkpoints: a file is replaced as a whole, or stays as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch  # type: ignore[import-not-found,unused-ignore]

from .._types import Path
from ._places import Place, Tensors, by_device, check, places
from ._replace import replaced

Bytes: TypeAlias = bytes | bytearray | memoryview

Parts: TypeAlias = Tensors | Bytes | Sequence[torch.Tensor | Bytes]
"""Tensors, bytes, or both in a row, such as a header and the tensors that it tells of."""


def save_checkpoint(path: Path, parts: Parts) -> int:
    """Replaces a file by the bytes of `parts`, one after another, and returns how many those are.

    Whoever opens `path`, at whatever moment and after whatever crash, finds the old file whole or
    the new one whole. When the call returns, the new one is on the drive, under its name. Where it
    raises, the old one is as it was, and nothing is left beside it; only should the last step fail,
    to bring the folder to the drive, is the new one there already.

    It is written beside the old one, so the file system needs room for both. A process that is
    killed leaves what it had written, as `.NAME.*.tmp`: remove such files when no process writes.
    """
    wanted = _in_a_row(parts)
    end = max((begin + length for begin, length, _ in wanted), default=0)
    with replaced(path) as file:
        if end > 0:
            file.preallocate(0, end)  # a drive that is full says so before the work
        return sum(file.writev(group).bytes for group in by_device(wanted))


def _in_a_row(parts: Parts) -> list[Place]:
    if isinstance(parts, bytes | bytearray | memoryview):
        parts = [parts]
    if isinstance(parts, torch.Tensor | Mapping):
        return places(parts, None)
    wanted: list[Place] = []
    begin = 0
    for number, part in enumerate(parts):
        place = _place(number, part, begin)
        wanted += place
        begin += sum(length for _, length, _ in place)
    return wanted


def _place(number: int, part: Any, begin: int) -> list[Place]:
    if isinstance(part, torch.Tensor):
        check(f"part {number}", part, begin)
        return places([part], begin)
    if isinstance(part, bytes | bytearray | memoryview):
        length = memoryview(part).nbytes
        return [(begin, length, part)] if length > 0 else []
    kind = type(part).__name__
    raise TypeError(f"part {number} is a `{kind}`: give tensors of torch, and bytes")
