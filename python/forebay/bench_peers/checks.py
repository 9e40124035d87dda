"""Whether what was loaded is what is in the file: names, sizes, shapes, and all bytes.

With torch the sums are made where the tensors are, so that looking at 8 GiB on a GPU costs
milliseconds; each word counts with an odd weight of its place, so that words that were swapped
show. Without torch the bytes are on the host, and a CRC does.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

from .._errors import shown
from .model import Model
from .sides.side import Loaded, is_there, torch

_CHUNK = 64 << 20
_WORD_BYTES = 8
_ALL_BITS = (1 << 64) - 1
_FACTOR = 1_000_003


def sums_of_file(model: Model) -> dict[str, int]:
    """What the tensors of a file come to, read by Python's own means."""
    sums = {}
    with open(model.path, "rb") as file:
        for tensor in model.tensors:
            file.seek(tensor.begin)
            lengths = _lengths(tensor.end - tensor.begin)
            sums[tensor.name] = _sum(_on_host(bytearray(file.read(length))) for length in lengths)
    return sums


def wrong(model: Model, loaded: Loaded, sums: dict[str, int]) -> str | None:
    """What is not as in the file; `None` where all is."""
    if missing := sums.keys() - loaded.tensors.keys():
        return f"{len(missing)} tensors are missing, such as `{min(missing)}`"
    if more := loaded.tensors.keys() - sums.keys():
        return f"{len(more)} tensors are not in the file, such as `{min(more)}`"
    for tensor in model.tensors:
        flat = _flat(loaded.tensors[tensor.name])
        if len(flat) != tensor.end - tensor.begin:
            return f"`{shown(tensor.name)}` has {len(flat)} bytes, not {tensor.end - tensor.begin}"
        shape = tuple(loaded.tensors[tensor.name].shape)
        # One element without a shape is one in a row of one to some.
        if is_there("torch") and tensor.shape and shape != tensor.shape:
            return f"`{shown(tensor.name)}` has the shape {shape}, not {tensor.shape}"
        begins = range(0, len(flat), _CHUNK)
        if _sum(flat[begin : begin + _CHUNK] for begin in begins) != sums[tensor.name]:
            return f"the bytes of `{shown(tensor.name)}` are not those of the file"
    return None


def _lengths(nbytes: int) -> list[int]:
    return [min(_CHUNK, nbytes - begin) for begin in range(0, nbytes, _CHUNK)]


def _flat(tensor: Any) -> Any:
    """The bytes of a tensor, one after another."""
    if is_there("torch"):
        return tensor.detach().reshape(-1).view(torch().uint8)
    return memoryview(tensor).cast("B")


def _on_host(data: bytearray) -> Any:
    return torch().frombuffer(data, dtype=torch().uint8) if is_there("torch") else data


def _sum(chunks: Iterable[Any]) -> int:
    total = 0
    for chunk in chunks:
        if is_there("torch"):
            total = (total * _FACTOR + _sum_of_words(chunk)) & _ALL_BITS
        else:
            total = zlib.crc32(chunk, total)
    return total


def _sum_of_words(chunk: Any) -> int:
    """Of a tensor of bytes; those behind its last whole word count as a word with zeros."""
    whole = -(-len(chunk) // _WORD_BYTES) * _WORD_BYTES
    padded = torch().zeros(whole, dtype=torch().uint8, device=chunk.device)
    padded[: len(chunk)] = chunk
    words = padded.view(torch().int64)
    weights = torch().arange(1, 2 * len(words), 2, dtype=torch().int64, device=chunk.device)
    return int((words * weights).sum()) & _ALL_BITS
