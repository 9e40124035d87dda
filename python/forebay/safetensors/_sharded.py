"""Writes a model in several files: a loader finds the old model or the new one, at any moment.

The index names the files of a model, so replacing it is the step from the old model to the new
one. New files never have the names of old ones while an index has them: if the plain names are
taken, files get names with a random part, the index names these, and then plain names take over.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from .. import _forebay
from .._errors import of_system, shown
from .._forebay import FolderTurn, remove_temporary
from .._replace import replace
from .._sizes import size_of
from .._types import Path
from . import _save
from ._files import small_file
from ._frameworks import described

_NAME = "model.safetensors"
"""The name of a model in one file, as transformers has it."""

_NAMES = re.compile(r"[^/\0.][^/\0]*\.safetensors")


def save_sharded(
    tensors: Mapping[str, Any],
    folder: Path,
    *,
    max_shard_size: int | str = "5GB",
    metadata: Mapping[str, str] | None = None,
    name: str = _NAME,
    variant: str | None = None,
    sync: bool = True,
) -> int:
    """Writes a model into a folder, in files of limited size; returns how many bytes they have.

    `forebay.load_file(folder)` loads it, and so do transformers and diffusers: the files are
    ``model-00001-of-00003.safetensors`` and so on, and ``model.safetensors.index.json``. A model
    that fits into one file is ``model.safetensors``.

    The folder may have another model of this name. Until the last step a loader finds that one, and
    from then on the new one, also after a crash or a power cut. Then the files of the old one are
    removed; a later save removes what a killed one left. The file system needs space for both.

    Args:
        tensors: as for `forebay.save_file`.
        folder: the folder; it is made if it is missing.
        max_shard_size: most bytes of the tensors of a file; a larger tensor has a file of its own.
        metadata: strings for ``__metadata__`` of each file.
        name: the name of a model in one file: diffusers has
            ``diffusion_pytorch_model.safetensors``.
        variant: a variant such as ``fp16``, which is then part of the names.
        sync: as for `forebay.save_file`.

    Raises:
        TypeError, ValueError: as `forebay.save_file`.
        BlockingIOError: another process saves to this folder.
        forebay.Error: a file cannot be written.
    """
    if not _NAMES.fullmatch(name):
        raise ValueError(f"`name` cannot be `{shown(name)}`: it takes `model.safetensors` or such")
    if variant is not None and not re.fullmatch(r"[^/\0.]+", variant):
        raise ValueError(f"`variant` cannot be `{shown(variant)}`: it takes a word such as `fp16`")
    most = size_of(max_shard_size)
    shards = _divided(tensors, most)
    root = os.fsdecode(folder)
    try:
        os.makedirs(root, exist_ok=True)
        turn = FolderTurn(root)
    except OSError as error:
        tried = error.strerror if error.filename is None else "cannot make the folder"
        cause = OSError(error.errno, os.strerror(error.errno or 0))
        raise of_system(cause, f"{tried} `{shown(root)}`", root) from None
    with turn:
        return _Folder(root, turn, name, variant, sync).save(shards, metadata)


def _divided(tensors: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    """The tensors of each file, in their order."""
    if not isinstance(tensors, Mapping):
        _save.places(tensors, None, "the model")  # which refuses it
    about = [described(name, tensor) for name, tensor in tensors.items()]
    _save.refuse_shared(about)
    shards: list[dict[str, Any]] = [{}]
    nbytes = 0
    for one in about:
        if shards[-1] and nbytes + one.nbytes > most:
            shards.append({})
            nbytes = 0
        shards[-1][one.name] = tensors[one.name]
        nbytes += one.nbytes
    return shards


class _Folder:
    """A folder, and the names of a model in it."""

    def __init__(
        self, root: str, turn: FolderTurn, name: str, variant: str | None, sync: bool
    ) -> None:
        self._root, self._turn, self._sync = root, turn, sync
        stem = name.removesuffix(".safetensors")
        ending = f".{variant}" if variant else ""
        self._stem = stem + ending
        self._whole = f"{self._stem}.safetensors"
        self._index = f"{name}.index{ending}.json"
        # `model-00001-of-00003.safetensors`, also with a random part as `_names` makes it.
        self._own = re.compile(
            rf"{re.escape(self._stem)}(\.[0-9a-f]{{16}})?-[0-9]{{5}}-of-[0-9]{{5}}\.safetensors"
        )

    def save(self, shards: list[dict[str, Any]], metadata: Mapping[str, str] | None) -> int:
        """Writes the files, then the index; removes the files of the model before."""
        old = self._listed()
        for name in (self._whole, self._index, f"{self._stem}."):
            remove_temporary(self._root, name)
        remove_temporary(self._root, f"{self._stem}-")
        if len(shards) == 1:
            nbytes = _save.save_file(shards[0], self._path(self._whole), metadata, sync=self._sync)
            self._remove([self._index])  # the step to the new model, for loaders of indexes
            self._remove((old | self._present()) - {self._whole})
            return nbytes
        names = self._names(len(shards), "")
        is_taken = bool(self._present())
        if is_taken:
            names = self._names(len(shards), f".{secrets.token_hex(8)}")
        nbytes = 0
        for name, tensors in zip(names, shards, strict=True):
            nbytes += _save.save_file(tensors, self._path(name), metadata, sync=self._sync)
        self._write_index(names, shards)
        self._remove((old | self._present() | {self._whole}) - set(names))
        if is_taken:
            self._rename(names, self._names(len(shards), ""), shards)
        return nbytes

    def _rename(
        self, names: list[str], plain: list[str], shards: list[dict[str, Any]]
    ) -> None:
        """Gives the files their plain names, where the file system has hard links."""
        try:
            for name, other in zip(names, plain, strict=True):
                os.link(self._path(name), self._path(other))
        except OSError:
            self._remove(plain)
            return
        if self._sync:
            self._turn.sync()
        self._write_index(plain, shards)
        self._remove(names)

    def _names(self, count: int, mark: str) -> list[str]:
        numbers = range(1, count + 1)
        return [f"{self._stem}{mark}-{at:05}-of-{count:05}.safetensors" for at in numbers]

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def _write_index(self, names: list[str], shards: list[dict[str, Any]]) -> None:
        of_tensor = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(described(key, one).nbytes for shard in shards for key, one in shard.items())
        about = {"metadata": {"total_size": total}, "weight_map": of_tensor}
        text = json.dumps(about, indent=2, sort_keys=True, ensure_ascii=False).encode()
        replace(self._path(self._index), lambda file: file.write_from(text), self._sync)

    def _present(self) -> set[str]:
        """Files of the folder that have names of shards."""
        return {name for name in os.listdir(self._root) if self._own.fullmatch(name)}

    def _listed(self) -> set[str]:
        """Files of the old model that its index names, and that are not in a subfolder."""
        with suppress(Exception):  # what is no index names no files
            found = _forebay.ModelIndex(small_file(self._path(self._index))).files()
            return {name for name in found if _NAMES.fullmatch(name)}
        return set()

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(OSError):
                os.unlink(self._path(name))
        if self._sync:
            self._turn.sync()
