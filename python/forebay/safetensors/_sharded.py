"""Writes a model in several files: a loader finds the old model or the new one, at any moment.

The index names the files of a model, so replacing it is the step from the old model to the new
one. A file never has the name of one that an index named: if the folder has a model, or another
save runs, the names have a random part. So no reader mixes two models, whatever index it has read.

Each save holds a temporary file with a lock. The last save to end removes the files of all others,
and none begins while it does; one that ends while another runs removes only those that the index
before its own named.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .. import _forebay
from .._errors import Error, MissingFile, local, of_system, shown
from .._forebay import remove_temporary
from .._replace import Turn, replace, sync_folder
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
    from then on the new one, also after a crash or a power cut. The new files have a random part in
    their names then, such as ``model-0123456789abcdef-00001-of-00003.safetensors``. Then the files
    of the old one are removed; a later save removes what a killed one left. The file system needs
    space for both. If several processes save to the folder at once, the last index counts.

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
        forebay.Error: a file cannot be written.
    """
    if not _NAMES.fullmatch(name):
        raise ValueError(f"`name` cannot be `{shown(name)}`: it takes `model.safetensors` or such")
    if variant is not None and not re.fullmatch(r"[^/\0.]+", variant):
        raise ValueError(f"`variant` cannot be `{shown(variant)}`: it takes a word such as `fp16`")
    most = size_of(max_shard_size)
    shards = _divided(tensors, most)
    root = local(folder)
    try:
        os.makedirs(root, exist_ok=True)
    except OSError as error:
        raise of_system(error, f"cannot make the folder `{shown(root)}`", root) from None
    return _Folder(root, name, variant, sync).save(shards, metadata)


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

    def __init__(self, root: str, name: str, variant: str | None, sync: bool) -> None:
        self._root, self._sync = root, sync
        stem = name.removesuffix(".safetensors")
        ending = f".{variant}" if variant else ""
        self._stem = stem + ending
        self._whole = f"{self._stem}.safetensors"
        self._index = f"{name}.index{ending}.json"
        # `model-00001-of-00003.safetensors`, also with a random part.
        self._own = re.compile(
            rf"{re.escape(self._stem)}(-[0-9a-f]{{16}})?-[0-9]{{5}}-of-[0-9]{{5}}\.safetensors"
        )

    def save(self, shards: list[dict[str, Any]], metadata: Mapping[str, str] | None) -> int:
        """Writes the files, then the index; removes the files of the model before."""
        with Turn(self._path(self._index)) as turn:
            for start in (self._index, f"{self._stem}.", f"{self._stem}-"):
                remove_temporary(self._root, start)
            names = [self._whole] if len(shards) == 1 else self._names(len(shards), turn)
            nbytes = 0
            for name, tensors in zip(names, shards, strict=True):
                nbytes += _save.save_file(tensors, self._path(name), metadata, sync=self._sync)
            old = self._listed()
            index = self._replace_index(names, shards)
            # A save that begins later may write the file of a model in one file again.
            with turn.alone() as is_alone:
                if is_alone and self._read_index() == index:
                    old |= self._present()
                else:
                    old.discard(self._whole)
                for name in old - set(names):
                    with suppress(OSError):
                        os.unlink(self._path(name))
        return nbytes

    def _names(self, count: int, turn: Turn) -> list[str]:
        """Names that no index has, and that no other save uses."""
        # In this order: a save that ends later still has its turn, or its files are present.
        with turn.alone() as is_alone:
            is_first = is_alone and not self._present() and self._read_index() is None
        mark = "" if is_first else f"-{secrets.token_hex(8)}"
        numbers = range(1, count + 1)
        return [f"{self._stem}{mark}-{at:05}-of-{count:05}.safetensors" for at in numbers]

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name)

    def _replace_index(self, names: list[str], shards: list[dict[str, Any]]) -> bytes | None:
        """The step to the new model. A model in one file has no index."""
        if names == [self._whole]:
            path = self._path(self._index)
            try:
                os.unlink(path)
                if self._sync:
                    sync_folder(self._root)
            except FileNotFoundError:
                pass
            except OSError as error:
                tried = f"cannot remove the index of the old model, `{shown(path)}`"
                raise of_system(error, tried, path) from None
            return None
        of_tensor = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
        total = sum(described(key, one).nbytes for shard in shards for key, one in shard.items())
        about = {"metadata": {"total_size": total}, "weight_map": of_tensor}
        text = json.dumps(about, indent=2, sort_keys=True, ensure_ascii=False).encode()
        replace(self._path(self._index), lambda file: file.write_from(text), self._sync)
        return text

    def _read_index(self) -> bytes | None:
        try:
            return small_file(self._path(self._index))
        except MissingFile:
            return None
        except Error:
            return b""  # it is of no save

    def _present(self) -> set[str]:
        """Files of the folder that have names of a model's files."""
        return {
            name for name in os.listdir(self._root)
            if name == self._whole or self._own.fullmatch(name)
        }

    def _listed(self) -> set[str]:
        """Files that the index names, and that are not in a subfolder."""
        with suppress(Exception):  # what is no index names no files
            found = _forebay.ModelIndex(self._read_index() or b"").files()
            return {name for name in found if _NAMES.fullmatch(name)}
        return set()
