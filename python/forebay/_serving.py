"""Shared by the loaders for vLLM and SGLang: options, ranks, and replacing a function."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from types import UnionType
from typing import Any

from ._errors import shown
from ._sizes import size_of
from ._progress import Line

OPTIONS: dict[str, type | UnionType] = {"copy": bool, "device": str, "window": str | int}
"""The arguments of `iterate` that a user may give, and their types."""

_lock = threading.RLock()


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a loader, as arguments of `iterate`.

    Raises:
        ValueError: a key is unknown, or a value cannot be used.
    """
    tried = "cannot use `--model-loader-extra-config` for forebay"
    for key, value in given.items():
        if key not in OPTIONS:
            known = ", ".join(f"`{name}`" for name in OPTIONS)
            raise ValueError(f"{tried}: unknown option `{shown(key)}`; use {known}")
        if not isinstance(value, OPTIONS[key]):
            raise ValueError(f"{tried}: `{key}` cannot be `{shown(value)}`")
    if "window" in given:
        size_of(given["window"])
    return dict(given)


def together(files: Iterable[str], device: str) -> dict[str, Any]:
    """The argument `group` of `iterate`: the ranks of this host that load the same files.

    On the host each rank maps the pages of the files, which is faster.
    """
    if device == "cpu" or rank() is None:
        return {}
    from torch import distributed  # type: ignore[import-not-found,unused-ignore]

    from .safetensors._group import OfHost

    model = sha256("\0".join(files).encode()).hexdigest()
    return {"group": OfHost(distributed.group.WORLD, model)}


def rank() -> int | None:
    """The rank of this process, if there are several."""
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank() if distributed.get_world_size() > 1 else None


def watched(
    tensors: Iterator[tuple[str, Any]], files: Iterable[str]
) -> Iterator[tuple[str, Any]]:
    """The tensors of files, with a line of progress of the first rank."""
    if rank():
        yield from tensors
        return
    total, done, line = sum(map(os.path.getsize, files)), 0, Line("loading by forebay")
    for name, tensor in tensors:
        yield name, tensor
        done = min(done + tensor.nbytes, total - 1)  # the end is shown once
        line(done, total)
    line(total, total)


def without(server: str, tested: str, error: Exception) -> None:
    """Warns that a version of a server cannot load models by Forebay."""
    text = (
        f"forebay is not available in this {server}: {shown(error)}; tested with {server} {tested}"
    )
    warnings.warn(text, RuntimeWarning, stacklevel=3)


@contextmanager
def exchanged(module: Any, function: Callable[..., Any], *names: str) -> Iterator[None]:
    """Replaces functions of a module by another function, within the block.

    Raises:
        AttributeError: the module does not have one of them.
    """
    with _lock:
        kept = {name: getattr(module, name) for name in names}
        vars(module).update(dict.fromkeys(names, function))
        try:
            yield
        finally:
            vars(module).update(kept)
