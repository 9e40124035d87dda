"""Writes checkpoints: each file as a whole, the metadata last."""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import re
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch  # type: ignore[import-not-found,unused-ignore]
import torch.distributed.checkpoint as dcp  # type: ignore[import-not-found,unused-ignore]

from ..._errors import local
from ..._forebay import Descriptor, remove_temporary
from ..._replace import Turn, by_device, put, replace
from ..._types import Path, Place
from .._places import nbytes
from ._frame import frame

if TYPE_CHECKING:
    from ..._forebay import File

_SMALL = 64 << 10
"""Tensors of fewer bytes are packed; larger ones begin at a block of the drive."""

_BLOCK = 4096

_SUFFIX = dcp.filesystem.DEFAULT_SUFFIX

_DATA = re.compile(rf"__[0-9]+_[0-9]+(?:-[0-9a-f]{{16}})?{re.escape(_SUFFIX)}")
"""The names of data files, as torch makes them, and with a random part as here."""

_NAMED = re.compile(_DATA.pattern.encode())
"""The same in the bytes of metadata."""

_WINDOW = 2 << 30
"""A call writes the pending bytes once there are so many."""


class Writer(dcp.FileSystemWriter):  # type: ignore[misc]
    """Writes a checkpoint for `torch.distributed.checkpoint.save` and ``async_save``.

    It replaces torch's `FileSystemWriter`, and its files have the same form. Each rank writes one
    file, from the tensors' own memory. A file gets its name when all of its bytes are on the drive.
    No save uses the names of another one's data files. The metadata comes last, and replaces that of
    an older checkpoint atomically: until then the folder is the old checkpoint, from then on the new
    one. Then the data files of the old one are removed. If several saves to the folder run at once,
    the last metadata counts, and the last save to end removes the files of the others.

    Args:
        path: the folder of the checkpoint.
        options: as `FileSystemWriter` takes them. ``thread_count`` and ``per_thread_copy_ahead``
            have no effect. With extensions or another ``serialization_format`` torch itself writes.

    Raises:
        forebay.Error: while it saves, a file cannot be written.
    """

    _turn: Turn | None = None
    _finishes = False

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(local(path), **options)

    def reset(self, checkpoint_id: Path | None = None) -> None:
        super().reset(checkpoint_id and local(checkpoint_id))
        self._end()

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        self._finishes = is_coordinator or not self.use_collectives

    def prepare_local_plan(self, plan: dcp.SavePlan) -> dcp.SavePlan:
        plan = super().prepare_local_plan(plan)
        if self._finishes:  # before any rank writes
            self._turn = Turn(self._metadata_path())
        return plan

    def write_data(
        self, plan: dcp.SavePlan, planner: dcp.SavePlanner
    ) -> torch.futures.Future[list[dcp.storage.WriteResult]]:
        try:
            return self._write_plan(plan, planner)
        except BaseException:
            self._end()
            raise

    def _write_plan(
        self, plan: dcp.SavePlan, planner: dcp.SavePlanner
    ) -> torch.futures.Future[list[dcp.storage.WriteResult]]:
        plain = dcp.filesystem.SerializationFormat.TORCH_SAVE
        if self.transforms.extensions or self.serialization_format != plain:
            return super().write_data(plan, planner)
        parts = [plan.items] if self.single_file_per_rank else [[item] for item in plan.items]
        results: list[dcp.storage.WriteResult] = []
        for number, items in enumerate(parts):
            name = f"{plan.storage_data.prefix}{number}-{secrets.token_hex(8)}{_SUFFIX}"

            def fill(file: File, name: str = name, items: Any = items) -> None:
                results.extend(_write(file, name, items, planner, self.sync_files))

            replace(os.path.join(self.path, name), fill, self.sync_files)
        done: torch.futures.Future[list[dcp.storage.WriteResult]] = torch.futures.Future()
        done.set_result(results)
        return done

    def finish(
        self, metadata: dcp.Metadata, results: list[list[dcp.storage.WriteResult]]
    ) -> None:
        metadata.version = dcp.filesystem.CURRENT_DCP_VERSION
        metadata.storage_data = {one.index: one.storage_data for part in results for one in part}
        metadata.storage_meta = self.storage_meta()
        content = pickle.dumps(metadata)
        kept = {one.relative_path for one in metadata.storage_data.values()}
        path = self._metadata_path()
        try:
            old = {name.decode() for name in _NAMED.findall(_content(path))}
            replace(path, lambda file: file.write_from(content), self.sync_files)
            with suppress(OSError):  # what cannot be removed stays
                self._remove_old(path, content, old, kept)
        finally:
            self._end()

    def _metadata_path(self) -> str:
        return str(self._get_metadata_path(None if self.use_collectives else self.rank))

    def _end(self) -> None:
        if self._turn is not None:
            self._turn.close()
        self._turn = None

    def _remove_old(self, path: str, content: bytes, old: set[str], kept: set[str]) -> None:
        """Removes the data files of the old checkpoint, and all unused ones if no other save runs.

        If the folder has other metadata, as that of each rank, they may belong to that.
        """
        folder, own = os.path.split(path)
        names = os.listdir(folder)
        if any(name.endswith(".metadata") and name != own for name in names):
            return
        # In this order: the files of a save that begins later are not in the list.
        if self._turn is not None:
            with self._turn.alone() as is_alone:
                if is_alone and _content(path) == content:
                    old = {name for name in names if _DATA.fullmatch(name)}
                    remove_temporary(folder, "__")
        for name in old - kept:
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))


def _content(path: str) -> bytes:
    """The bytes of metadata; none if there is none."""
    try:
        # A FIFO does not wait for its writer.
        with Descriptor(path, os.O_RDONLY | os.O_NONBLOCK) as number:
            with open(number, "rb", closefd=False) as file:
                return file.read()
    except OSError:
        return b""


def _write(
    file: File, name: str, items: list[dcp.WriteItem], planner: dcp.SavePlanner, sync: bool
) -> list[dcp.storage.WriteResult]:
    """Writes the items of a file, objects first as torch does."""
    results = []
    row = _Row(file, sync)
    kind = dcp.planner.WriteItemType.BYTE_IO
    for item in sorted(items, key=lambda item: item.type != kind):
        data = planner.resolve_data(item)
        if item.type == kind:
            offset, length = row.add(data.getbuffer())
        elif _is_plain(data):
            offset, length = row.add_tensor(data.detach().resolve_conj().resolve_neg())
        else:
            stream = io.BytesIO()
            torch.save(data.detach().cpu().clone(), stream)
            offset, length = row.add(stream.getbuffer())
        info = dcp.filesystem._StorageInfo(name, offset, length)
        results.append(dcp.storage.WriteResult(item.index, length, info))
        if row.pending >= _WINDOW:
            row.write()
    row.write()
    return results


def _is_plain(data: Any) -> bool:
    """Whether it is a tensor of torch with nothing but its elements."""
    is_own = type(data) in (torch.Tensor, torch.nn.Parameter)
    return is_own and data.layout == torch.strided and not data.is_quantized


class _Row:
    """Consecutive bytes of a file, written in few calls."""

    def __init__(self, file: File, sync: bool) -> None:
        self._file, self._sync = file, sync
        self._begin = self._end = 0
        self._pieces: list[Place] = []
        # Bytes up to the end that are in no piece yet.
        self._rest = bytearray()

    @property
    def pending(self) -> int:
        """Bytes that are not written yet."""
        return self._end - self._begin

    def add(self, content: Any) -> tuple[int, int]:
        """Appends bytes; returns their offset and their number."""
        before = self._end
        self._rest += content
        self._end += len(content)
        return before, len(content)

    def add_tensor(self, data: Any) -> tuple[int, int]:
        """Appends the item of a tensor; returns its offset and its length."""
        if data.device.type not in ("cpu", "cuda"):
            data = data.cpu()
        data = data.contiguous()
        length = nbytes(data)
        head, tail = frame(data.dtype, tuple(data.shape))
        self.add(bytes(-(self._end + len(head)) % (_BLOCK if length >= _SMALL else 64)))
        begin, _ = self.add(head)
        if length < _SMALL and data.device.type == "cpu":
            self.add(ctypes.string_at(data.data_ptr(), length) if length else b"")
        else:
            self._close()
            self._pieces.append((self._end, length, data))
            self._end += length
        self.add(tail)
        return begin, self._end - begin

    def write(self) -> None:
        """Writes the pending bytes."""
        self._close()
        if self._pieces:
            self._file.preallocate(self._begin, self.pending)  # a full drive is reported first
        for group in by_device(self._pieces):
            put(self._file, group, self._sync)
        self._begin, self._pieces = self._end, []

    def _close(self) -> None:
        if self._rest:
            self._pieces.append((self._end - len(self._rest), len(self._rest), self._rest))
            self._rest = bytearray()
