"""Writes safetensors files: a file is replaced as a whole, or stays as it was."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from .._errors import shown
from .._replace import replaced
from .._types import Path
from ._frameworks import Given, described
from ._header import BITS, LENGTH

_ALIGNMENT = 8


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    sync: bool = True,
) -> int:
    """Replaces a file by one with these tensors, and returns how many bytes it has.

    Whoever opens the file, at any moment and after any crash, finds the old one whole or the new
    one whole. When the call returns the new one is on the drive.

    Args:
        tensors: of torch or NumPy, by name; on GPUs or on the host, each contiguous.
        filename: the file. It keeps its owner, permissions and attributes if it is there.
        metadata: texts for ``__metadata__``.
        sync: whether the bytes are on the drive before the file takes its name.

    Raises:
        ValueError: a tensor has gaps, or shares its memory with another.
        forebay.Error: the file cannot be written.
    """
    about = sorted(
        (described(name, tensor) for name, tensor in tensors.items()),
        # As safetensors orders them: the longest elements first, so that all are aligned.
        key=lambda one: (-BITS[one.dtype], one.name),
    )
    header: dict[str, Any] = {}
    if metadata:
        header["__metadata__"] = dict(metadata)
    end = 0
    for one in about:
        offsets = [end, end + one.nbytes]
        header[one.name] = {"dtype": one.dtype, "shape": one.shape, "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    head = len(text).to_bytes(LENGTH, "little") + text
    _refuse_shared(about)
    with replaced(filename, sync) as file:
        file.preallocate(0, len(head) + end)  # a full drive is reported before the work
        file.write_from(head)
        for group in _by_device(about, len(head)):
            file.writev(group)
    return len(head) + end


def _by_device(about: list[Given], begin: int) -> list[list[tuple[int, int, Any]]]:
    """Places in the file, in groups: one call has all its memory on one device."""
    groups: dict[Any, list[tuple[int, int, Any]]] = {}
    for one in about:
        if one.nbytes:
            groups.setdefault(one.device, []).append((begin, one.nbytes, one.memory))
        begin += one.nbytes
    return list(groups.values())


def _refuse_shared(about: list[Given]) -> None:
    """Refuses tensors that share memory: they would be loaded as several."""
    last: Given | None = None
    for one in sorted(about, key=lambda one: (str(one.device), one.begin)):
        if one.nbytes == 0:
            continue
        if last and last.device == one.device and one.begin < last.begin + last.nbytes:
            raise ValueError(
                f"the tensors `{shown(last.name)}` and `{shown(one.name)}` share memory: leave one "
                "out, or use `save_model`, which does"
            )
        last = one
