"""Reads checkpoints: the requested bytes, in one call."""

from __future__ import annotations

import dataclasses
import io
import os
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed.checkpoint as dcp  # type: ignore[import-not-found,unused-ignore]

from ... import _process
from ..._errors import FileChanged, MissingFile, local, shown
from ..._raw import RawFile
from ..._types import Path
from ...safetensors._files import CUT_OFF
from ...safetensors._pages import changed
from ...safetensors._plan import ATTEMPTS
from . import _metadata
from ._item import PEEK, TRUST, Layout, Refused, check, located, refuse
from ._numbers import MADE

if TYPE_CHECKING:
    from ..._forebay import Engine, File

_Index: TypeAlias = dcp.metadata.MetadataIndex

_ITEMS = 16384
"""Most items of one call: their headers are in memory together."""

_STAGED = 1 << 30
"""A call ends after the item with which its bytes that are copied again reach this number."""


@dataclasses.dataclass(slots=True)
class _Place:
    """The place of an item in a file; `payload` is `None` if torch has to read it."""

    file: File
    path: str
    offset: int
    length: int
    payload: tuple[int, Layout] | None = None

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the item."""
        content = bytearray(length)
        self.file.read_into(content, self.offset + offset)
        return bytes(content)


class Reader(dcp.FileSystemReader):  # type: ignore[misc]
    """Reads a checkpoint for `torch.distributed.checkpoint.load`.

    It replaces torch's `FileSystemReader`. Each rank reads the bytes of its tensors, directly into
    them if they are contiguous there and in the file. Torch itself reads items that are not plain
    tensors. A load beside a save by `Writer` is one of the old checkpoint or of the new one.

    Args:
        path: the folder of the checkpoint.
        weights_only: refuses objects that could run code, in the metadata as well. Classes given to
            `torch.serialization.add_safe_globals` are allowed.
        engine: by default that of the process.
        options: as `FileSystemReader` takes them.

    Raises:
        forebay.safetensors.FormatError: while it loads, a file or an item is broken.
        forebay.FileChanged: while it loads, saves replaced the checkpoint by one of other tensors,
            or two ranks found different checkpoints.
        forebay.Error: while it loads, a file cannot be opened or read.
    """

    def __init__(
        self,
        path: Path,
        *,
        weights_only: bool = True,
        engine: Engine | None = None,
        **options: Any,
    ) -> None:
        super().__init__(local(path), **options)
        self._weights_only = weights_only
        self._engine = engine
        self._chunks: dict[tuple[str, Any], Any] = {}
        self._metadata = dcp.Metadata({})
        # The files of a load are open from its plan to its end: a save may remove their names.
        self._files: dict[str, File] = {}
        self.fs = _OpenFiles(self._files)
        self._reports: list[dict[str, Any]] = []

    def reset(self, checkpoint_id: Path | None = None) -> None:
        super().reset(checkpoint_id and local(checkpoint_id))

    def report(self) -> list[dict[str, Any]]:
        """The routes of the last load: `forebay.ManyResult.report` of each call."""
        return self._reports

    def read_metadata(self, *args: Any, **kwargs: Any) -> dcp.Metadata:
        if not self._weights_only:
            return super().read_metadata(*args, **kwargs)
        found = _metadata.read(os.fspath(self._get_metadata_path(kwargs.get("rank"))))
        if getattr(found, "storage_meta", None) is None:
            found.storage_meta = dcp.metadata.StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found

    def set_up_storage_reader(self, metadata: dcp.Metadata, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_reader(metadata, *args, **kwargs)
        self._metadata = metadata
        # With the name, whose hash is random, a file cannot make keys collide.
        self._chunks = {
            (name, chunk.offsets): chunk.sizes
            for name, about in metadata.state_dict_metadata.items()
            if isinstance(about, dcp.metadata.TensorStorageMetadata)
            for chunk in about.chunks
        }

    def prepare_local_plan(self, plan: dcp.LoadPlan) -> dcp.LoadPlan:
        plan = super().prepare_local_plan(plan)
        for _ in range(ATTEMPTS):
            try:
                for item in plan.items:
                    self._open(item)
                break
            except MissingFile as error:
                self._find_newer(error)
        else:
            raise self._changed(f"saves replaced it {ATTEMPTS} times in a row")
        about = self._metadata.storage_meta
        return dataclasses.replace(plan, storage_data=about and about.save_id)

    def prepare_global_plan(self, plans: list[dcp.LoadPlan]) -> list[dcp.LoadPlan]:
        if len({plan.storage_data for plan in plans}) > 1:
            raise self._changed("ranks found different checkpoints, since a save replaced it")
        return super().prepare_global_plan(plans)  # type: ignore[no-any-return]

    def _find_newer(self, missing: MissingFile) -> None:
        """Uses the checkpoint of a save that has replaced the one of the plan.

        Raises:
            forebay.MissingFile: no save has.
        """
        old, rank = self._metadata, None if self.use_collectives else self.rank
        new = self.read_metadata() if rank is None else self.read_metadata(rank=rank)
        if new.storage_data == old.storage_data:
            raise missing
        if (new.state_dict_metadata, new.planner_data) != (old.state_dict_metadata, old.planner_data):
            raise self._changed("a save replaced it by one of other tensors")
        self._close()
        self._metadata, self.storage_data = new, new.storage_data

    def _changed(self, why: str) -> FileChanged:
        return changed(str(self.path), why, "load it again")

    def _open(self, item: dcp.ReadItem) -> tuple[str, File]:
        """The path and the file of an item."""
        name = item.storage_index.fqn
        path = self._path(name, self.storage_data.get(item.storage_index))
        if path not in self._files:
            try:
                self._files[path] = (self._engine or _process.default_engine()).open(path)
            except MissingFile as error:
                error.hint = f"the checkpoint's metadata names it: {CUT_OFF}"
                raise
        return path, self._files[path]

    def _close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()

    def read_data(self, plan: dcp.LoadPlan, planner: dcp.LoadPlanner) -> torch.futures.Future[None]:
        try:
            return self._read_plan(plan, planner)
        finally:
            self._close()

    def _read_plan(self, plan: dcp.LoadPlan, planner: dcp.LoadPlanner) -> torch.futures.Future[None]:
        engine = self._engine or _process.default_engine()
        self._reports = []
        others: list[dcp.ReadItem] = []
        for first in range(0, len(plan.items), _ITEMS):
            items = plan.items[first : first + _ITEMS]
            others += self._fill(engine, items, self._places(engine, items), planner)
        checked = _Checked(planner, str(self.path)) if self._weights_only else planner
        for item in others:
            try:
                super().read_data(dataclasses.replace(plan, items=[item]), checked)
            except (OSError, MemoryError):
                raise
            except Exception as error:  # a pickle can raise any
                why = f"torch cannot read it: {type(error).__name__}: {str(error)[:200]}"
                refuse(str(self.path), item.storage_index.fqn, why, error=error)
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    def _places(self, engine: Engine, items: list[dcp.ReadItem]) -> dict[_Index, _Place]:
        """The places of the items, from the metadata and from their own headers."""
        places: dict[_Index, _Place] = {}
        peeked: list[tuple[_Index, _Place]] = []
        for item in items:
            index = item.storage_index
            if index in places:
                continue
            path, file = self._open(item)
            info = self.storage_data[index]
            place = places[index] = _Place(file, path, info.offset, info.length)
            if place.offset + place.length > file.size:
                end = place.offset + place.length
                refuse(path, index.fqn, f"it ends at byte {end}, but the file at byte {file.size}")
            is_tensor = item.type is dcp.planner.LoadItemType.TENSOR
            if is_tensor and not info.transform_descriptors:
                peeked.append((index, place))
        for (index, place), head, tail in _peeks(engine, peeked):
            try:
                place.payload = located(head, tail, place.length, place.read)
            except Refused as refused:
                refuse(place.path, index.fqn, str(refused))
            shape = self._chunks.get((index.fqn, index.offset))
            if place.payload and place.payload[1].shape != shape:
                why = f"its shape {list(place.payload[1].shape)} is not that of the metadata"
                refuse(place.path, index.fqn, why)
        return places

    def _path(self, name: str, info: Any) -> str:
        """The file of an item, which is in the checkpoint's folder."""
        folder = str(self.path)
        relative = getattr(info, "relative_path", None)
        if not isinstance(relative, str) or not relative:
            refuse(folder, name, "the metadata does not name its file")
        if os.path.isabs(relative) or ".." in relative.split("/") or "\0" in relative:
            refuse(folder, name, f"its file `{shown(relative)}` is not in that folder")
        numbers = (getattr(info, "offset", None), getattr(info, "length", None))
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            refuse(folder, name, "the metadata has an invalid offset or length")
        return os.path.join(folder, relative)

    def _fill(
        self,
        engine: Engine,
        items: list[dcp.ReadItem],
        places: dict[_Index, _Place],
        planner: dcp.LoadPlanner,
    ) -> list[dcp.ReadItem]:
        """Reads the tensors, and returns the items that are left to torch."""
        others: list[dcp.ReadItem] = []
        batch = _Batch()
        for item in items:
            place = places[item.storage_index]
            if item.type is not dcp.planner.LoadItemType.TENSOR or place.payload is None:
                others.append(item)
                continue
            target = planner.resolve_tensor(item).detach()
            if target.device.type not in ("cpu", "cuda") or target.layout != torch.strided:
                others.append(item)
                continue
            try:
                batch.add(item, place, place.payload, target)
            except Refused as refused:
                refuse(place.path, item.storage_index.fqn, str(refused))
            if batch.staged >= _STAGED:
                self._reports += batch.read(engine, planner)
                batch = _Batch()
        self._reports += batch.read(engine, planner)
        return others


class _OpenFiles(dcp.filesystem.FileSystem):  # type: ignore[misc]
    """The files that torch reads, by their paths: those of a load that are open already."""

    def __init__(self, files: dict[str, File]) -> None:
        self._files = files

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        if file := self._files.get(str(path)):
            yield io.BufferedReader(_View(file))
        else:
            with super().create_stream(path, mode) as stream:
                yield stream


class _View(RawFile):
    """A raw file that does not close the file."""

    def close(self) -> None:
        io.RawIOBase.close(self)


class _Batch:
    """Reads that are one call for each device."""

    def __init__(self) -> None:
        self.staged = 0
        self._requests: dict[Any, list[tuple[File, int, int, Any]]] = {}
        self._filled: list[tuple[dcp.ReadItem, Any, Any]] = []

    def add(
        self, item: dcp.ReadItem, place: _Place, payload: tuple[int, Layout], target: Any
    ) -> None:
        """Adds a target to fill."""
        start, layout = payload
        if target.size() != item.lengths:
            raise Refused(f"a part of {list(item.lengths)} cannot fill {list(target.size())}")
        first, count, dense = layout.span(item.storage_offsets, item.lengths)
        memory, view = target, None
        is_plain = target.is_contiguous() and not target.is_conj() and not target.is_neg()
        if not dense or not is_plain or target.dtype != layout.dtype:
            memory = torch.empty(count, dtype=layout.dtype, device=target.device)
            view = memory.as_strided(target.size(), layout.strides)
            self.staged += memory.nbytes
        if count:
            itemsize = layout.dtype.itemsize
            offset = place.offset + start + first * itemsize
            request = (place.file, offset, count * itemsize, memory)
            self._requests.setdefault(target.device, []).append(request)
        self._filled.append((item, target, view))

    def read(self, engine: Engine, planner: dcp.LoadPlanner) -> list[dict[str, Any]]:
        """Fills the targets, and returns the calls' reports."""
        reports = [engine.read_many(group).report() for group in self._requests.values()]
        for item, target, view in self._filled:
            if view is not None:
                target.copy_(view)
            elif not target.is_inference():
                torch.autograd.graph.increment_version(target)
            planner.commit_tensor(item, target)
        return reports


class _Checked:
    """A planner that gets objects only if they run no code: as this process pickles them."""

    def __init__(self, planner: dcp.LoadPlanner, folder: str) -> None:
        self._planner = planner
        self._folder = folder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._planner, name)

    def load_bytes(self, item: dcp.ReadItem, value: Any) -> None:
        numbers = torch.serialization.safe_globals([(made, name) for name, made in MADE.items()])
        again = io.BytesIO()
        try:
            check(value.getvalue())
            with numbers:
                torch.save(torch.load(value, map_location="cpu", weights_only=True), again)
        except Exception as error:  # a pickle can raise any
            why = f"it may run code, or is broken: {str(error)[:200]}"
            refuse(self._folder, item.storage_index.fqn, why, TRUST, error)
        again.seek(0)
        self._planner.load_bytes(item, again)


def _peeks(
    engine: Engine, places: list[tuple[_Index, _Place]]
) -> Iterator[tuple[tuple[_Index, _Place], bytes, bytes]]:
    """Both ends of all items, read by one call."""
    if not places:
        return
    files: dict[File, int] = {}
    file_of, offsets, lengths, at = array("Q"), array("Q"), array("Q"), array("Q")
    for number, (_, place) in enumerate(places):
        length = min(PEEK, place.length)
        file = files.setdefault(place.file, len(files))
        file_of.extend((file, file))
        offsets.extend((place.offset, place.offset + place.length - length))
        lengths.extend((length, length))
        at.extend((number * 2 * PEEK, (number * 2 + 1) * PEEK))
    memory = bytearray(len(places) * 2 * PEEK)
    engine.read_many(
        files=list(files), file_of=file_of, offsets=offsets, lengths=lengths, target=memory, at=at
    )
    for start, found in zip(range(0, len(memory), 2 * PEEK), places, strict=True):
        length = min(PEEK, found[1].length)
        middle = start + PEEK
        yield found, bytes(memory[start : start + length]), bytes(memory[middle : middle + length])
