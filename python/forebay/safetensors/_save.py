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
    """Writes a file as `forebay.save_file` does; returns its size."""
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
    """Header and tensors, with their offsets in the file."""
    if not isinstance(tensors, Mapping):
        kind = type(tensors).__name__
        raise NotTensors(f"`tensors` cannot be `{kind}`: give tensors by name")
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
    try:
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        near = shown(error.object[max(error.start - 50, 0) : error.end])
        raise ValueError(f"cannot save {where}: `{near}` in a name is not Unicode") from None
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
