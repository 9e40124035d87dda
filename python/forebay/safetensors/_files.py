"""Finds the files of a model."""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from .. import _forebay
from .._errors import MissingFile, local, of_system, shortened, shown
from .._errors import refused as invalid
from .._types import Path
from ._header import FormatError, refused
from ._pages import Stamp

if TYPE_CHECKING:
    from .._forebay import Engine

Paths: TypeAlias = Path | Sequence[Path]
"""A file, an index, a folder, or a list of them."""

_KINDS = ["*.safetensors", "*pytorch_model*.bin"]
"""Patterns of a folder's files: those of the first one with a match belong to the model."""

_WHOLE = "model.safetensors"
"""The file of a model that has only one; others in its folder are its copies in other forms."""

_PIPELINE = "model_index.json"
"""The file of a folder of diffusers, which has a model in each of several folders."""

_INDEX = re.compile(r"(?P<stem>.*)\.index(?P<variant>\.[^.]+)?\.json|index\.json", re.DOTALL)
"""The names of an index: of transformers and accelerate, with a variant at its end."""

_SHARD = re.compile(
    r"(?P<stem>.*)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})(?P<end>\..*)", re.DOTALL
)

_UNFINISHED = re.compile(r".*-[0-9a-f]{16}-[0-9]{5}-of-[0-9]{5}\.safetensors", re.DOTALL)
"""The names of files that `save_sharded` writes next to another model: only an index names them."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""The identifier of a repository of Hugging Face, such as ``meta-llama/Llama-3-8B``."""

CUT_OFF = "was the download cut off?"

STALE = "get the index again: it is incomplete, or of another model"

SMALL_MAX = 100_000_000
"""Most bytes of a file that is read as a whole: an index, metadata, a name."""


@dataclass(frozen=True, slots=True)
class OwnNames:
    """The tensors that an index says are in a file; `stamp` is that of the index."""

    index: _forebay.ModelIndex
    number: int
    path: str
    stamp: Stamp

    def __contains__(self, name: str) -> bool:
        try:
            return self.index.has(name, self.number)
        except ValueError as error:
            raise refused(self.path, str(error), None) from None

    def __iter__(self) -> Iterator[str]:
        return self.index.names(self.number)


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of a model.

    Attributes:
        path: the file.
        names: its tensors that belong to the model, ``None`` all.
    """

    path: str
    names: OwnNames | None = None


def listed(paths: Paths) -> list[str]:
    """The paths as texts."""
    if isinstance(paths, str | bytes | os.PathLike):
        return [local(paths)]
    if hasattr(paths, "read") or not isinstance(paths, Iterable):
        kind = type(paths).__name__
        raise TypeError(f"cannot load the type `{kind}`: give a path or a list of paths")
    if not (found := list(map(local, paths))):
        raise invalid("cannot load an empty list: give a path or a list of paths")
    return found


def names_near(paths: list[str]) -> list[list[str]]:
    """The names in the folders of models: each save of several files changes them."""
    found = []
    for folder in {path if os.path.isdir(path) else os.path.dirname(path) or "." for path in paths}:
        with suppress(OSError):
            found.append(sorted(os.listdir(folder)))
    return sorted(found)


def files(engine: Engine, paths: list[str]) -> list[ModelFile]:
    """The files that `paths` name.

    A folder means the files of its index, or its ``model.safetensors``, or all its
    ``.safetensors`` files, or else its ``pytorch_model.bin`` files. Hidden files do not count, and a
    variant, such as ``model.fp16.safetensors``, only where it is the only one. A folder of the
    Hugging Face cache (``models--…``) means the snapshot that ``refs/main`` names, or the only one.

    Raises:
        FormatError: a folder has no such files, one is missing, or an index is invalid.
    """
    return [file for path in paths for file in _of(engine, path)]


def small_file(path: str) -> bytes:
    """The bytes of a regular file of at most 100 MB.

    Raises:
        FormatError: it is larger, or of another kind.
        forebay.Error: it cannot be read.
    """
    try:
        # A FIFO does not wait for its writer.
        with _forebay.Descriptor(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY) as number:
            kind = os.fstat(number)
            if not stat.S_ISREG(kind.st_mode):
                raise refused(path, "it is no regular file", "give the files of a model")
            with open(number, "rb", closefd=False) as file:
                text = file.read(SMALL_MAX + 1) if kind.st_size <= SMALL_MAX else b""
    except FormatError:
        raise
    except OSError as error:
        raise of_system(error, f"cannot load `{shown(path)}`", path, _why(path)) from error
    if kind.st_size > SMALL_MAX or len(text) > SMALL_MAX:
        raise refused(path, f"it has more than {SMALL_MAX} bytes", "check that it is complete")
    return text


def _why(path: str) -> str | None:
    """Why a path names no file: a link whose target is missing."""
    try:
        target = os.readlink(path)
    except OSError:
        return None
    if os.path.exists(path):
        return None
    return f"it is a link to `{shown(target)}`, which is missing: {CUT_OFF}"


def missing(path: str, index: str | None) -> str | None:
    """What to do about a file of a model that is missing."""
    if why := _why(path):
        return why
    if index is not None:
        return f"the index `{shown(index)}` names it: {CUT_OFF}"
    if _REPOSITORY.fullmatch(path):
        call = f'huggingface_hub.snapshot_download("{path}")'
        return f"for a repository of Hugging Face give the folder that `{call}` returns"
    return None


def _of(engine: Engine, path: str) -> list[ModelFile]:
    is_index = _INDEX.fullmatch(os.path.basename(path))
    if is_index and not os.path.isdir(path):
        return _of_index(engine, path)
    if not os.path.isdir(path):
        return [ModelFile(path)]
    folder = _snapshot(path)
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError as error:
        raise of_system(error, f"cannot load `{shown(folder)}`", folder) from error
    for kind in _KINDS:
        if index := _index(folder, names, kind):
            return _of_index(engine, index)
        found = _plain(fnmatch.filter(names, kind))
        if _WHOLE in found:
            found = [_WHOLE]
        found = [name for name in found if not _UNFINISHED.fullmatch(name)] or found
        if lost := _lost(found):
            hint = f"{CUT_OFF} A list of files loads just these"
            raise refused(folder, f"its file `{shown(lost)}` is missing", hint)
        if found:
            return [ModelFile(os.path.join(folder, name)) for name in found]
    kinds = " and no ".join(f"`{kind}`" for kind in _KINDS)
    hint = "give a file or another folder"
    if _PIPELINE in names:
        hint = "it is a folder of diffusers: give one of the folders in it, such as `unet`"
    raise refused(folder, f"it has no {kinds}", hint)


def _snapshot(path: str) -> str:
    """The folder of a snapshot, if the path is one of the Hugging Face cache."""
    main, snapshots = os.path.join(path, "refs", "main"), os.path.join(path, "snapshots")
    if not os.path.isdir(snapshots):
        return path
    if os.path.lexists(main):
        try:
            name = small_file(main).decode().strip()
        except UnicodeDecodeError as error:
            raise refused(main, "it is no text", "give the folder of a snapshot") from error
        # One part of a path: the name of a commit.
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            why = f"it names `{shortened(name)}`, which is no snapshot"
            raise refused(main, why, "give the folder of a snapshot")
        return os.path.join(snapshots, name)
    try:
        found = sorted(name for name in os.listdir(snapshots) if not name.startswith("."))
    except OSError as error:
        raise of_system(error, f"cannot load `{shown(snapshots)}`", snapshots) from error
    if len(found) > 1:
        several = ", ".join(f"`{shortened(name)}`" for name in found[:4])
        raise refused(path, f"it has several snapshots: {several}", "give the folder of one")
    return os.path.join(snapshots, found[0]) if found else path


def _index(folder: str, names: list[str], kind: str) -> str | None:
    """The index of a folder, without a variant if there is one."""
    matches = [(name, match) for name in names if (match := _INDEX.fullmatch(name))]
    found = [name for name, match in matches if fnmatch.fnmatchcase(match["stem"] or "", kind)]
    plain = _plain(found)
    if len(plain) > 1:
        several = ", ".join(f"`{shown(name)}`" for name in plain)
        raise refused(folder, f"it has several indexes: {several}", "give one of them")
    return os.path.join(folder, plain[0]) if plain else None


def _plain(names: list[str]) -> list[str]:
    """The names without variants: names that are another one with a word such as ``fp16``."""
    known = set(map(_title, names))

    def is_variant(name: str) -> bool:
        stem, end = _title(name)
        words = stem.split(".")
        without = (".".join(words[:at] + words[at + 1 :]) for at in range(1, len(words)))
        return any((other, end) in known for other in without)

    return [name for name in names if not is_variant(name)]


def _title(name: str) -> tuple[str, str]:
    """A name without its ending and number."""
    if match := _SHARD.fullmatch(name):
        return match["stem"], match["end"]
    if match := _INDEX.fullmatch(name):
        stem, dot, end = (match["stem"] or "").rpartition(".")
        return f"{stem}{match['variant'] or ''}", f"{dot}{end}.index"
    stem, dot, end = name.rpartition(".")
    return stem, f"{dot}{end}"


def _lost(names: list[str]) -> str | None:
    """A file of a model in several that is missing."""
    sets: dict[tuple[str, str, str], set[int]] = {}
    for name in names:
        if match := _SHARD.fullmatch(name):
            key = (match["stem"], match["count"], match["end"])
            sets.setdefault(key, set()).add(int(match["number"]))
    for (stem, count, end), numbers in sets.items():
        if lacks := _lacks(int(count), numbers):
            return f"{stem}-{lacks:05}-of-{count}{end}"
    return None


def _lacks(count: int, numbers: set[int]) -> int | None:
    """The first number from 1 to `count` that is missing."""
    first = 0 if 0 in numbers else 1
    return next((at for at in range(first, first + count) if at not in numbers), None)


def _of_index(engine: Engine, path: str) -> list[ModelFile]:
    """The files of an index, in the order of their names, each with its tensors."""
    try:
        stamp = Stamp(file := engine.open(path))
    except MissingFile as error:
        error.hint = _why(path) or error.hint
        raise
    if file.size > SMALL_MAX:
        raise refused(path, f"it has more than {SMALL_MAX} bytes", "check that it is complete")
    file.read_into(text := bytearray(file.size))
    try:
        index = _forebay.ModelIndex(bytes(text))
    except ValueError as error:
        hint = "give the whole index of a model's files"
        raise refused(path, str(error), hint) from error
    found = list(enumerate(index.files()))
    folder = os.path.dirname(path)
    for _, name in found:
        parts = name.split("/")
        if "" in (name, parts[-1]) or name.startswith("/") or ".." in parts or "\0" in name:
            why = f"it names the file `{shortened(name)}`, which is not in its folder"
            raise refused(path, why, None)
    if lost := _lost([name for _, name in found]):
        why = f"it names no tensor of the file `{shown(lost)}`"
        raise refused(path, why, STALE)
    found.sort(key=lambda one: os.fsencode(one[1]))
    return [
        ModelFile(os.path.join(folder, name), OwnNames(index, number, path, stamp))
        for number, name in found
    ]
