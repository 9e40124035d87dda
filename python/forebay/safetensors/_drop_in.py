"""The functions of `safetensors.torch` by their own names, keywords, defaults and results."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any

from .. import _forebay
from . import _load, _save
from ._frameworks import framework as chosen
from ._header import Header, Stored, refused
from ._plan import ALIGNMENT, Part, region

if TYPE_CHECKING:
    from typing import Unpack

    from .._types import Device, Load, Path
    from ._files import Paths


def load_file(
    filename: Paths, device: Device = "cpu", **options: Unpack[Load]
) -> dict[str, Any]:
    """Loads the tensors of a model, by default to the host; returns them by name.

    This is `forebay.load_file`, which loads to a GPU by default, with the default of
    `safetensors.torch.load_file`.

    Args:
        filename: a file, or what else `forebay.load_file` takes.
        device: the device of the tensors.
        options: the other arguments of `forebay.load_file`.

    Raises:
        As `forebay.load_file` does.
    """
    return _load.load_file(filename, "cpu" if device is None else device, **options)


_ALL = signature(_load.load_file)
_HOST = _ALL.parameters["device"].replace(default="cpu")
load_file.__signature__ = _ALL.replace(  # type: ignore[attr-defined]
    parameters=[_HOST if one.name == "device" else one for one in _ALL.parameters.values()]
)


def save_file(
    tensors: Mapping[str, Any],
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    *,
    sync: bool = True,
) -> None:
    """Replaces a file by one with these tensors.

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
