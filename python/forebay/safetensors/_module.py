"""Modules of torch whose parameters share memory, which is written once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._drop_in import load_file, save_file

if TYPE_CHECKING:
    from .._types import Device, Path
    from ._files import Paths


def load_model(
    model: Any,
    filename: Paths,
    strict: bool = True,
    device: Device = "cpu",
    *,
    backend: str = "mmap",
) -> tuple[set[str], list[str]]:
    """Loads a model's files into a module of torch.

    Args:
        model: a `torch.nn.Module`.
        filename: as for `load_file`.
        strict: whether a name that is missing in the files, or unknown to the module, is an error.
        device: the device of the tensors before they are copied into the module.
        backend: as for `load_file`.

    Returns:
        The names of the module that the files do not have, and the names of the files that the
        module does not have. Of parameters that share memory, one name is enough, and of a parameter
        and its parts that of the whole one.
    """
    loaded = load_file(filename, device, backend=backend)
    state = model.state_dict()
    missing, unexpected = model.load_state_dict(loaded, strict=False)
    left = set(missing)
    found = set(loaded)
    for group in _shared(state):
        if found & group:
            found |= group
    found |= {name for name, whole in _parts(state).items() if whole in found}
    left -= found
    if strict and (left or unexpected):
        names = [f"missing: {', '.join(sorted(left))}"] if left else []
        names += [f"unknown: {', '.join(sorted(unexpected))}"] if unexpected else []
        raise RuntimeError(f"cannot load `{type(model).__name__}`: {'; '.join(names)}")
    return left, list(unexpected)


def save_model(
    model: Any,
    filename: Path,
    metadata: Mapping[str, str] | None = None,
    force_contiguous: bool = True,
) -> None:
    """Writes a module's tensors, as `save_file` does; each memory once.

    Of names that share memory, the first in the alphabet is written, and of a tensor and its parts
    the whole one. ``__metadata__`` maps the others to it.
    """
    state = dict(model.state_dict())
    texts = dict(metadata or {})
    kept_by = {name: min(group) for group in _shared(state) for name in group - {min(group)}}
    kept_by |= _parts(state)
    for name, kept in kept_by.items():
        texts.setdefault(name, kept)
        del state[name]
    if force_contiguous:
        state = {name: tensor.contiguous() for name, tensor in state.items()}
    save_file(state, filename, texts)


def _shared(state: Mapping[str, Any]) -> list[set[str]]:
    """Names whose tensors are the same memory."""
    groups: dict[Any, set[str]] = {}
    for name, tensor in state.items():
        if tensor.numel():
            layout: Any = tensor.nbytes
            if not tensor.is_contiguous():
                layout = (tensor.shape, tensor.stride(), tensor.dtype)
            # Tensors on `meta` have no memory: only the same object is shared.
            begin = id(tensor) if tensor.is_meta else tensor.data_ptr()
            where = (tensor.device, begin, layout)
            groups.setdefault(where, set()).add(name)
    return [names for names in groups.values() if len(names) > 1]


def _parts(state: Mapping[str, Any]) -> dict[str, str]:
    """Names whose tensors lie in the memory of another one, with the name of that one."""
    spans = []
    for name, tensor in state.items():
        if tensor.numel() and not tensor.is_meta:
            pairs = zip(tensor.shape, tensor.stride(), strict=True)
            last = sum((size - 1) * stride for size, stride in pairs)
            begin = tensor.data_ptr()
            spans.append((str(tensor.device), begin, begin + (last + 1) * tensor.itemsize, name))
    found: dict[str, str] = {}
    whole = None
    # A tensor comes before its parts.
    for device, begin, end, name in sorted(spans, key=lambda one: (*one[:2], -one[2], one[3])):
        if whole and device == whole[0] and end <= whole[1]:
            found[name] = whole[2]
        elif state[name].is_contiguous():
            whole = device, end, name
    return found
