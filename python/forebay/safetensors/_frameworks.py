"""Tensors of torch and arrays of NumPy in memory that is read or written."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias

from .._errors import NoDevice, RequestError, shortened, shown
from .._memory import require
from ._header import FormatError, Stored
from ._shared import GpuMemory, HostMemory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._forebay import Engine


NAMES = {
    "BOOL": "bool",
    "F4": "float4_e2m1fn_x2",
    "U8": "uint8",
    "I8": "int8",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "bfloat16",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "C64": "complex64",
    "F64": "float64",
    "I64": "int64",
    "U64": "uint64",
}
"""The types with their names in torch, NumPy and `ml_dtypes`; none of these has all types."""


Maker: TypeAlias = "Callable[[Stored, Sequence[int], int, int], Any]"
"""A function of a tensor, its shape, and where its bytes begin and end in memory."""


_OF_DLPACK = frozenset(("BF16", "F16", "F32", "F64", "U8", "I8", "I16", "I32", "I64"))
"""The types that DLPack has in each version of torch."""


@lru_cache(maxsize=1024)
def _strides(shape: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor without dimensions of one element."""
    strides = [1]
    for size in shape[:0:-1]:
        strides.insert(0, strides[0] * size)
    return strides[: len(shape)]


class Torch:
    """Tensors of torch, each with a separate storage."""

    def __init__(self, device: Any) -> None:
        try:
            import torch  # type: ignore[import-not-found,unused-ignore]
        except ModuleNotFoundError:
            remedy = 'install it, or load arrays of NumPy by `framework="numpy"`'
            raise ModuleNotFoundError(f"there is no torch: {remedy}", name="torch") from None

        self._torch: Any = torch
        self._device = torch_device(device)
        self.is_on_host = self._device.type == "cpu"
        self._dtypes = {own: getattr(torch, name, None) for own, name in NAMES.items()}

    def memory(self, nbytes: int) -> Any:
        """New contiguous memory, with one byte per element.

        Raises:
            OutOfMemory: a limit has no room for it.
        """
        if self.is_on_host:
            require(nbytes, "cannot load the tensors")
        return self._torch.empty(nbytes, dtype=self._torch.uint8, device=self._device)

    def shared(self, engine: Engine, nbytes: int) -> GpuMemory | HostMemory:
        """New memory that other processes of this host can map."""
        if self.is_on_host:
            return HostMemory(self, nbytes)
        return GpuMemory(self._torch, engine, self._device, nbytes)

    def bytes_of(self, buffer: Any) -> Any:
        """A buffer as memory, with one byte per element."""
        return self._torch.frombuffer(buffer, dtype=self._torch.uint8)

    def dtype(self, stored: Stored) -> Any:
        """The type of a tensor.

        Raises:
            FormatError: the framework does not have it.
        """
        dtype = self._dtypes.get(stored.dtype)
        if dtype is None:
            raise no_type(f"torch {self._torch.__version__}", stored)
        return dtype

    def check(self, stored: Stored) -> None:
        """Refuses tensors that `tensor` cannot make.

        Raises:
            FormatError: the framework does not have the type, or cannot have the shape.
        """
        self.dtype(stored)
        shape = self.shape(stored, stored.shape)
        if 0 in shape:
            try:
                self._torch.empty(shape, device="meta")
            except (RuntimeError, TypeError, OverflowError) as error:
                raise no_shape("torch", stored) from error

    def target(self, dtype: Any) -> Any:
        """A type that tensors are converted to, from the type or its name.

        Raises:
            TypeError: it is no type of the framework.
        """
        found = getattr(self._torch, dtype, None) if isinstance(dtype, str) else dtype
        if not isinstance(found, self._torch.dtype):
            raise TypeError(f"`dtype` cannot be `{shown(dtype)}`: give a type such as torch.float16")
        return found

    def tensor(self, memory: Any, stored: Stored, shape: Sequence[int]) -> Any:
        dtype = self.dtype(stored)
        shape = self.shape(stored, shape)
        if 0 in shape:
            return self._torch.empty(shape, dtype=dtype, device=self._device)
        if isinstance(memory, memoryview):
            return self._torch.frombuffer(memory, dtype=dtype).view(shape)
        own = self._torch.from_dlpack(self._torch.utils.dlpack.to_dlpack(memory))
        return own.view(dtype).view(shape)

    def maker(self, memory: Any) -> Maker:
        """Makes many tensors of the same memory."""
        whole = self.bytes_of(memory) if isinstance(memory, memoryview) else memory
        typed: dict[str, tuple[Any, int, int]] = {}
        dlpack = self._torch.utils.dlpack
        to_dlpack, from_dlpack = dlpack.to_dlpack, self._torch._C._from_dlpack

        def make(stored: Stored, shape: Sequence[int], begin: int, end: int) -> Any:
            own = stored.dtype
            if own not in _OF_DLPACK or begin == end or 1 in shape:
                return self.tensor(whole[begin:end], stored, shape)
            if own not in typed:
                dtype: Any = self._dtypes[own]
                flat = whole[: len(whole) // dtype.itemsize * dtype.itemsize].view(dtype)
                typed[own] = flat, flat.storage_offset(), dtype.itemsize
            flat, first, item = typed[own]
            if begin % item:
                return self.tensor(whole[begin:end], stored, shape)
            # Through DLPack the tensor gets a storage that ends where it ends.
            return from_dlpack(to_dlpack(
                flat.as_strided(shape, _strides(shape), first + begin // item)
            ))  # fmt: skip

        return make

    def shape(self, stored: Stored, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of a tensor or of a part, in elements of the framework."""
        if stored.dtype != "F4":
            return tuple(shape)
        if not shape or shape[-1] % 2:
            raise no_type(f"torch {self._torch.__version__}", stored, " with odd rows")
        return (*shape[:-1], shape[-1] // 2)  # an element of torch holds two

    def view(self, flat: Any, shape: Sequence[int], first: int, strides: Sequence[int]) -> Any:
        """A view of a flat tensor: elements from `first` on, with strides."""
        return flat.as_strided(shape, strides, first)

    def is_converted(self, stored: Stored, dtype: Any) -> bool:
        """Whether a tensor has floating-point numbers of another type than this."""
        own = self.dtype(stored)
        return bool(own.is_floating_point and own != dtype and stored.dtype != "F4")

    def converted(self, tensor: Any, dtype: Any) -> Any:
        """A tensor in another type."""
        if self.is_on_host:
            require(tensor.numel() * dtype.itemsize, "cannot convert a tensor")
        return tensor.to(dtype)

    def copied(self, tensor: Any) -> Any:
        """A tensor with separate memory."""
        elements, reach = tensor.numel(), _reach(tensor.shape, tensor.stride())
        if self.is_on_host:
            require(min(elements, reach) * tensor.itemsize, "cannot copy a tensor")
        if elements <= reach:
            return tensor.clone()
        # `expand` repeats elements: each is copied once.
        own = tensor.as_strided((reach,), (1,), tensor.storage_offset()).clone()
        return own.as_strided(tensor.shape, tensor.stride())


class Numpy:
    """Arrays of NumPy, with the types of `ml_dtypes` where that is installed."""

    is_on_host = True

    def __init__(self, device: Any) -> None:
        try:
            import numpy
        except ModuleNotFoundError:
            remedy = "install it, or load tensors of torch by leaving `framework` out"
            raise ModuleNotFoundError(f"there is no NumPy: {remedy}", name="numpy") from None

        self._numpy = numpy
        if device is not None and str(device) not in ("cpu", "cpu:0", "auto"):
            raise ValueError(f"`device` cannot be `{device}`: arrays of NumPy are in host memory")

    def memory(self, nbytes: int) -> Any:
        require(nbytes, "cannot load the tensors")
        return self._numpy.empty(nbytes, dtype=self._numpy.uint8)

    def shared(self, engine: Engine, nbytes: int) -> GpuMemory | HostMemory:
        return HostMemory(self, nbytes)

    def shape(self, stored: Stored, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(shape)

    def bytes_of(self, buffer: Any) -> Any:
        return self._numpy.frombuffer(buffer, self._numpy.uint8)

    def check(self, stored: Stored) -> None:
        self.dtype(stored)
        try:
            self._numpy.broadcast_to(self._numpy.uint8(), stored.shape)
        except (ValueError, OverflowError) as error:
            raise no_shape("NumPy", stored) from error

    def target(self, dtype: Any) -> Any:
        try:
            return self._numpy.dtype(dtype)
        except TypeError as error:
            raise TypeError(f"`dtype` cannot be `{shown(dtype)}`: {error}") from None

    def tensor(self, memory: Any, stored: Stored, shape: Sequence[int]) -> Any:
        return self._numpy.frombuffer(memory, self.dtype(stored)).reshape(shape)

    def maker(self, memory: Any) -> Maker:
        return lambda stored, shape, begin, end: self.tensor(memory[begin:end], stored, shape)

    def view(self, flat: Any, shape: Sequence[int], first: int, strides: Sequence[int]) -> Any:
        # The stride of a single element does not matter, and may be too large for NumPy.
        both = zip(shape, strides, strict=True)
        steps = [(step if size > 1 else 1) * flat.itemsize for size, step in both]
        as_strided = self._numpy.lib.stride_tricks.as_strided
        return as_strided(flat[first:], shape, steps)

    def is_converted(self, stored: Stored, dtype: Any) -> bool:
        own = self.dtype(stored)
        # `ml_dtypes` gives its types any kind.
        return "float" in own.name and bool(own != dtype)

    def converted(self, tensor: Any, dtype: Any) -> Any:
        require(tensor.size * dtype.itemsize, "cannot convert a tensor")
        return tensor.astype(dtype)

    def copied(self, tensor: Any) -> Any:
        steps = [step // tensor.itemsize for step in tensor.strides]
        reach = _reach(tensor.shape, steps)
        require(min(tensor.size, reach) * tensor.itemsize, "cannot copy a tensor")
        if tensor.size <= reach:
            return tensor.copy()
        flat = self._numpy.lib.stride_tricks.as_strided(tensor, (reach,), (tensor.itemsize,))
        return self.view(flat.copy(), tensor.shape, 0, steps)

    def dtype(self, stored: Stored) -> Any:
        name = NAMES.get(stored.dtype, "")
        if name in self._numpy.sctypeDict:
            return self._numpy.dtype(name)
        try:
            import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            made = no_type("NumPy without `ml_dtypes`", stored)
            made.hint = f"`pip install ml_dtypes`, or {made.hint}"
            raise made from None
        if not hasattr(ml_dtypes, name):
            raise no_type(f"ml_dtypes {ml_dtypes.__version__}", stored)
        return self._numpy.dtype(getattr(ml_dtypes, name))


Framework: TypeAlias = Torch | Numpy
"""Makes memory and tensors; `is_on_host` says whether these are in host memory."""


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """The elements from the first one of a view to its last one."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, strides, strict=True))


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor to write; `memory` is the buffer for `writev`, and `begin` its address."""

    name: str
    dtype: str
    shape: list[int]
    nbytes: int
    memory: Any
    device: Any
    begin: int


class NotTensors(TypeError, ValueError):
    """A value to save is not a tensor. safetensors has ValueError."""


def described(name: str, tensor: Any) -> Given:
    """Describes a tensor of torch or NumPy as the format does.

    Raises:
        TypeError: it is not a tensor.
        ValueError: it is not contiguous, or the format has no type for its elements.
    """
    if not isinstance(name, str):
        raise NotTensors(f"the name of a tensor cannot be `{type(name).__name__}`")
    library = type(tensor).__module__.partition(".")[0]
    if library == "torch" or hasattr(tensor, "is_sparse"):
        return _of_torch(name, tensor)
    if hasattr(tensor, "__array_interface__"):
        return _of_numpy(name, tensor)
    kind = type(tensor).__name__
    hint = ""
    if isinstance(tensor, Mapping | list | tuple):
        hint = (
            ": give its tensors names of their own, such as `optimizer.0.exp_avg`, or save it by "
            "`torch.distributed.checkpoint`"
        )
    raise NotTensors(f"tensor `{shown(name)}` is of type `{kind}`, not of torch or NumPy{hint}")


def _of_torch(name: str, tensor: Any) -> Given:
    import torch

    from ..torch._places import check

    check(f"tensor `{shown(name)}`", tensor)
    tensor = tensor.detach()
    types = {getattr(torch, own, None): dtype for dtype, own in NAMES.items()}
    dtype, shape = types.get(tensor.dtype), list(tensor.shape)
    if dtype is None:
        raise ValueError(f"tensor `{shown(name)}`: safetensors has no type for `{tensor.dtype}`")
    if dtype == "F4":
        if not shape:
            two = "a scalar of it holds two numbers, and has no shape in safetensors"
            raise ValueError(f"tensor `{shown(name)}` is `{tensor.dtype}`: {two}: give `.view(1)`")
        shape[-1] *= 2
    nbytes = tensor.numel() * tensor.element_size()
    # Dimensions of one element may have any stride.
    memory = tensor.view(-1).view(torch.uint8)
    return Given(name, dtype, shape, nbytes, memory, tensor.device, tensor.data_ptr())


def _of_numpy(name: str, array: Any) -> Given:
    import numpy

    array = numpy.asarray(array)
    types = {own: dtype for dtype, own in NAMES.items()}
    dtype = types.get(array.dtype.name)
    if dtype is None:
        raise ValueError(f"tensor `{shown(name)}`: safetensors has no type for `{array.dtype}`")
    if not array.flags.c_contiguous or not array.dtype.isnative:
        order = "array.dtype.newbyteorder('=')"
        raise ValueError(
            f"tensor `{shown(name)}` is not contiguous, or has another byte order: "
            f"give `numpy.ascontiguousarray(array, {order})`"
        )
    memory = array.reshape(-1).view(numpy.uint8)
    begin = array.__array_interface__["data"][0]
    return Given(name, dtype, list(array.shape), array.nbytes, memory, "cpu", begin)


def no_type(library: str, stored: Stored, more: str = "") -> FormatError:
    """The error for a type that a library does not have."""
    tensor = f"the tensor `{shortened(stored.name)}` of `{shown(stored.path)}`"
    text = f"cannot load {tensor}: {library} has no type for `{stored.dtype}`{more}"
    made = FormatError(errno.EOPNOTSUPP, text, stored.path)
    where = f"its {stored.nbytes} bytes begin at byte {stored.offset} of the file"
    made.hint = f"omit it by `names=`, or read it by `forebay.open`: {where}"
    return made


def no_shape(library: str, stored: Stored) -> FormatError:
    """The error for a shape that a library cannot have."""
    tensor = f"the tensor `{shortened(stored.name)}` of `{shown(stored.path)}`"
    text = f"cannot load {tensor}: {library} has no shape {shortened(stored.shape)}"
    return FormatError(errno.EINVAL, text, stored.path)


def torch_device(device: Any) -> Any:
    """The device of torch that a caller names; by default its GPU, or the host without one.

    Raises:
        NoDevice: there is no such GPU.
        forebay.RequestError: it is no GPU of CUDA, and not the host.
    """
    import torch

    number = isinstance(device, int) and not isinstance(device, bool)
    name = "auto" if device is None else f"cuda:{device}" if number else str(device)
    kind, colon, index = name.partition(":")
    if kind == "cpu" and (not colon or index.isdecimal()):
        return torch.device("cpu")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto" and not gpus:
        return torch.device("cpu")
    if name in ("auto", "cuda") and gpus:
        return torch.device("cuda", torch.cuda.current_device())
    if kind == "cuda" and gpus and (not colon or index in map(str, range(gpus))):
        return torch.device(name)
    found = f"{gpus or 'no'} GPU{'' if gpus == 1 else 's'}"
    expected = f"`cpu`, `cuda` or `cuda:N`, and torch finds {found}"
    text = f"`device` cannot be `{shortened(name)}`: it takes {expected}"
    is_gpu = kind == "cuda" and (not colon or index.isdecimal())
    raise (NoDevice if is_gpu else RequestError)(errno.ENODEV, text)


def framework(name: str, device: Any) -> Framework:
    """The framework by its name in safetensors."""
    if name in ("torch", "pt", "pytorch"):
        return Torch(device)
    if name in ("numpy", "np"):
        return Numpy(device)
    raise ValueError(f"`framework` cannot be `{shown(name)}`: it takes `torch` or `numpy`")
