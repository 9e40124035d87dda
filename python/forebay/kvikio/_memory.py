"""Place and size of a caller's memory, for calls that need them before the engine does."""

from __future__ import annotations

import operator
import sys
from typing import Any

from .._forebay import Buffer

_HOST_KINDS = {1, 3, 11}
"""DLPack's types of host memory: plain, and pinned by CUDA or ROCm."""


class Part:
    """A part of an array on a GPU; it keeps the array."""

    def __init__(self, array: Any, offset: int, size: int) -> None:
        whole = array.__cuda_array_interface__
        self.array = array
        self.__cuda_array_interface__ = {
            **whole,
            "data": (whole["data"][0] + offset, whole["data"][1]),
            "shape": (size,),
            "typestr": "|u1",
            "strides": None,
            "descr": [("", "|u1")],
        }


def is_on_gpu(memory: Any) -> bool:
    """Whether an array or buffer is in GPU memory; false for other values."""
    if isinstance(memory, Buffer):
        return memory.device != "cpu"
    on_gpu = getattr(memory, "is_cuda", None)
    if isinstance(on_gpu, bool):
        return on_gpu
    if getattr(memory, "__cuda_array_interface__", None) is not None:
        return True
    device = getattr(memory, "__dlpack_device__", None)
    return device is not None and int(device()[0]) not in _HOST_KINDS


def size_of(memory: Any) -> int | None:
    """Its size in bytes; `None` if only the engine can find out."""
    if isinstance(memory, tuple) and len(memory) == 3:
        return operator.index(memory[1])
    size = getattr(memory, "nbytes", None)
    if size is not None:
        return int(size)
    interface = getattr(memory, "__cuda_array_interface__", None)
    if interface is not None:
        return _size_of_interface(interface)
    try:
        with memoryview(memory) as view:
            return view.nbytes
    except TypeError:
        return None


def _size_of_interface(interface: dict[str, Any]) -> int:
    size = int(interface["typestr"][2:])
    for length in interface["shape"]:
        size *= length
    return size


def part_of(memory: Any, offset: int, size: int | None) -> tuple[Any, int | None]:
    """GPU memory from `offset` on, and how many bytes of it to use.

    Raises:
        ValueError: it is host memory, has fewer bytes, or cannot be divided.
    """
    if not is_on_gpu(memory):
        text = "a `raw_` call needs memory on a GPU: use `read` or `write` for other memory"
        raise ValueError(text)
    if offset == 0:
        return memory, size
    whole = size_of(memory)
    if whole is None:
        raise ValueError("`dev_offset` needs an array with `nbytes`: give a slice of it instead")
    wanted = whole - offset if size is None else size
    if offset > whole or wanted > whole - offset:
        text = f"`dev_offset` {offset} with `size` {wanted} exceeds the memory's {whole} bytes"
        raise ValueError(text)
    return _divided(memory, offset, wanted), wanted


def _divided(memory: Any, offset: int, size: int) -> Any:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(memory, torch.Tensor):
        # The interface has no names for some of torch's types.
        flat = memory.detach().view(-1).view(torch.uint8)
        return flat[offset : offset + size]
    if getattr(memory, "__cuda_array_interface__", None) is None:
        kind = type(memory).__name__
        text = f"`dev_offset` cannot divide `{kind}`: give a slice of it instead"
        raise ValueError(text)
    _refuse_gaps(memory)
    return Part(memory, offset, size)


def _refuse_gaps(memory: Any) -> None:
    # A part has no strides, so the engine could not refuse them.
    interface = memory.__cuda_array_interface__
    strides, step = interface.get("strides"), int(interface["typestr"][2:])
    if strides is None:
        return
    for length, stride in reversed(list(zip(interface["shape"], strides, strict=True))):
        if length > 1 and stride != step:
            text = "it is not contiguous: make a contiguous copy first"
            raise ValueError(text)
        step *= length


def count(name: str, value: Any) -> int:
    """A size or an offset in bytes.

    Raises:
        OverflowError: it is negative, or 2**64 or more.
    """
    number = operator.index(value)
    if number < 0:
        raise OverflowError(f"`{name}` cannot be negative: {number}")
    if number >= 1 << 64:
        raise OverflowError(f"`{name}` must be less than 2**64")
    return number
