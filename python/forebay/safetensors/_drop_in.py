"""The functions of `safetensors.torch` by their own names, keywords, defaults and results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from .. import _forebay
from . import _load, _save
from ._frameworks import framework as chosen
from ._header import Header, Stored, refused
from ._plan import ALIGNMENT, Part, region

if TYPE_CHECKING:
    from .._forebay import Engine
    from .._types import Device, Path
    from ._files import Paths
    from ._load import Progress
    from ._plan import Names
    from ._slices import Shard

_BACKENDS = ("mmap", "pread")


def load_file(
    filename: Paths,
    device: Device = "cpu",
    *,
    backend: str = "mmap",
    names: Names = None,
    framework: str = "torch",
    dtype: Any = None,
    shard: Shard = None,
    rank: int | None = None,
    world_size: int | None = None,
    group: Any = None,
    copy: bool = False,
    progress: Progress = False,
    report: dict[str, Any] | None = None,
    engine: Engine | None = None,
) -> dict[str, Any]:
    """Loads the tensors of a model, by default to the host; returns them by name.

    This is `forebay.load_file`, which loads to a GPU by default, with the arguments of
    `safetensors.torch.load_file`.

    Args:
        filename: a file, or what else `forebay.load_file` takes.
        device: the device of the tensors.
        backend: ``mmap``, or ``pread``, which is `copy` of `forebay.load_file`.

    The other arguments are those of `forebay.load_file`.

    Raises:
        As `forebay.load_file` does.
    """
    loaded = _load.load_file(
        filename,
        device,
        names=names,
        framework=framework,
        dtype=dtype,
        shard=shard,
        rank=rank,
        world_size=world_size,
        group=group,
        copy=copy or checked(backend) == "pread",
        progress=progress,
        report=report,
        engine=engine,
    )
    return cast("dict[str, Any]", loaded)


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    sync: bool = True,
) -> None:
    """Replaces a file by one with these tensors: `forebay.save_file`, without its result."""
    _save.save_file(tensors, filename, metadata, sync=sync)


def load(data: bytes, framework: str = "torch") -> dict[str, Any]:
    """The tensors in the bytes of a safetensors file, on the host.

    Raises:
        FormatError: the bytes are not those of a safetensors file.
    """
    kind = chosen(framework, "cpu")
    try:
        found = _forebay.Header.of(data, "", Stored)
    except ValueError as error:
        raise refused("the bytes", str(error), "check that they are complete") from None
    header = Header("", found)
    part = Part()
    for place in range(len(header.tensors)):
        stored = header.tensors.at(place)
        kind.check(stored)
        start = -(-part.nbytes // ALIGNMENT) * ALIGNMENT
        part.tensors.append(region(stored, ...).placed(start))
        part.nbytes = start + stored.nbytes
    memory = kind.memory(part.nbytes)
    target = memoryview(memory if framework in ("numpy", "np") else memory.numpy())
    for one in part.tensors:
        begin = one.stored.offset
        target[one.start : one.start + one.nbytes] = memoryview(data)[begin : begin + one.nbytes]
    return dict(part.made(kind, memory))


def save(tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file with these tensors.

    Raises:
        As `save_file` does.
    """
    return _save.bytes_of(tensors, metadata)


def checked(backend: str) -> str:
    """One of safetensors' backends."""
    if backend not in _BACKENDS:
        raise ValueError(f"`backend` cannot be `{backend}`: it takes `mmap` or `pread`")
    return backend
