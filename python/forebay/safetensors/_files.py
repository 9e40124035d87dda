"""Finds the files of a model."""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path as FolderPath
from typing import Any, TypeAlias

from .._errors import of_system, shown
from .._types import Path
from ._header import refused

Paths: TypeAlias = Path | Sequence[Path]
"""A file, an index, a folder, or a list of them."""

_KINDS = ["*.safetensors", "*pytorch_model*.bin"]
"""Patterns of a folder's files: those of the first one with a match belong to the model."""

_WHOLE = "model.safetensors"
"""The file of a model that has only one; others in its folder are its copies in other forms."""


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of a model; `names` are its tensors that belong to the model, ``None`` all."""

    path: str
    names: frozenset[str] | None = None


def files(paths: Paths) -> list[ModelFile]:
    """The files that `paths` name.

    A folder means the files of its index, or its ``model.safetensors``, or all its
    ``.safetensors`` files, or else its ``pytorch_model.bin`` files. A folder of the Hugging Face
    cache (``models--…``) means the snapshot that ``refs/main`` names, or the only one.

    Raises:
        FormatError: a folder has no such files, or an index is invalid.
    """
    if isinstance(paths, str | bytes | os.PathLike):
        return _of(os.fsdecode(paths))
    return [file for path in paths for file in _of(os.fsdecode(path))]


def _of(path: str) -> list[ModelFile]:
    folder = FolderPath(path)
    if folder.name == "index.json" or path.endswith(".index.json"):
        return _of_index(folder)
    if not folder.is_dir():
        return [ModelFile(path)]
    main, snapshots = folder / "refs" / "main", folder / "snapshots"
    if snapshots.is_dir():
        if main.is_file():
            folder = snapshots / main.read_text().strip()
        elif len(only := list(snapshots.iterdir())) == 1:
            folder = only[0]
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        tried = f"cannot load `{shown(folder)}`"
        raise of_system(error, tried, str(folder)) from error
    for kind in _KINDS:
        indexes = fnmatch.filter(names, f"{kind}.index.json")
        if len(indexes) > 1:
            several = ", ".join(f"`{shown(name)}`" for name in indexes)
            raise refused(str(folder), f"it has several indexes: {several}", "give one of them")
        if indexes:
            return _of_index(folder / indexes[0])
        if _WHOLE in (found := fnmatch.filter(names, kind)):
            found = [_WHOLE]
        if found:
            return [ModelFile(str(folder / name)) for name in found]
    kinds = " and no ".join(f"`{kind}`" for kind in _KINDS)
    raise refused(str(folder), f"it has no {kinds}", "give a file or another folder")


def _of_index(path: FolderPath) -> list[ModelFile]:
    """The files of an index, in the order of their names, each with its tensors."""
    try:
        text = path.read_bytes()
    except OSError as error:
        tried = f"cannot load `{shown(path)}`"
        raise of_system(error, tried, str(path)) from error
    try:
        of_tensor: Any = json.loads(text)["weight_map"]
        names: dict[str, set[str]] = {}
        for tensor, name in of_tensor.items():
            names.setdefault(name, set()).add(tensor)
        order = sorted(names, key=str.encode)
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        why = "its `weight_map` does not say which file each tensor is in"
        raise refused(str(path), why, "give the index of a model's files") from error
    for name in order:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            why = f"it names the file `{shown(name)}`, which is not in its folder"
            raise refused(str(path), why, None)
    return [ModelFile(str(path.parent / name), frozenset(names[name])) for name in order]
