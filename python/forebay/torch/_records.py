"""Records of one size, read in batches ahead of their use."""

from __future__ import annotations

import errno
import math
import operator
import os
import resource
import stat
from collections import OrderedDict
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch  # type: ignore[import-not-found,unused-ignore]

from .. import _process
from .._errors import local, of_system, shown
from .._forebay import Engine, File
from .._types import Path
from ..safetensors._frameworks import torch_device
from ._ahead import Ahead
from ._order import Order, share
from ._places import dtype_of, shape_of

_OPEN_MOST = 256
"""Files that are kept open."""

_DESCRIPTORS_OF_FILE = 2
_SHARE = 4
"""Open files of a loop use at most a quarter of the process's descriptors."""


class RecordDataset(
    torch.utils.data.IterableDataset[torch.Tensor]  # type: ignore[misc,unused-ignore]
):
    """Batches of fixed-size records of one or more files, on a GPU or on the host.

    Args:
        paths: the files; records are numbered in the order of the files.
        record_shape: the shape of one record.
        dtype: the type of its elements.
        device: the device of the batches; by default torch's own default.
        batch_size: records of a batch.
        shuffle: whether the order is random, and different in each epoch.
        seed: the same seed and epoch give the same order, on every machine.
        prefetch: batches that are read ahead of the one in use.
        drop_last: leaves out the last batch if it is not full, and gives all ranks the same number
            of batches. Otherwise every record comes exactly once, and ranks may differ by one
            batch.
        header: bytes to skip at the start of each file.
        rank, world_size: the number of this share of the records, and the number of shares.
        engine: by default that of the process.

    Each loop over it is one epoch, read by a separate thread with one call for each batch. A batch
    is a new tensor of the shape `(records, *record_shape)`, which the caller may keep. On a GPU it
    is ready on every stream. If it is used on another stream than the one that was current when
    the loop returned it, it needs torch's `record_stream`, as all tensors do. An error of reading
    ahead is raised at the turn of its batch.

    It needs no `DataLoader`. In the workers of one, ``DataLoader(records, batch_size=None)``, each
    worker reads a share of the batches.

    Raises:
        ValueError: a file does not hold a whole number of records, or a number is invalid.
    """

    def __init__(
        self,
        paths: Path | Iterable[Path],
        record_shape: Sequence[int] | int,
        dtype: torch.dtype,
        device: torch.device | str | int | None = None,
        *,
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        prefetch: int = 2,
        drop_last: bool = False,
        header: int = 0,
        rank: int = 0,
        world_size: int = 1,
        engine: Engine | None = None,
    ) -> None:
        batch_size, prefetch = _need("batch_size", batch_size, 1), _need("prefetch", prefetch, 1)
        header, world_size = _need("header", header, 0), _need("world_size", world_size, 1)
        rank, seed = _index("rank", rank), _index("seed", seed)
        if not 0 <= rank < world_size:
            raise ValueError(f"`rank` cannot be {rank}: it takes 0 to {world_size - 1}")
        self.paths = _listed(paths)
        self.record_shape = _shape(record_shape)
        self.dtype = dtype_of(dtype)
        device = None if device is None else torch_device(device)
        self.device = torch.empty(0, device=device).device
        self.batch_size, self.prefetch, self.drop_last = batch_size, prefetch, drop_last
        self.shuffle, self.seed = shuffle, seed
        self._epoch = _shared(torch.zeros(1, dtype=torch.int64, device="cpu"))
        self.header = header
        self.record_bytes = math.prod(self.record_shape) * dtype.itemsize
        counts = [_records_of(path, header, self.record_bytes) for path in self.paths]
        # The number of the first record after each file.
        self._ends = torch.tensor(counts, dtype=torch.int64, device="cpu").cumsum(0)
        self.records = sum(counts)
        self._share = share(self.records, rank, world_size, drop_last)
        self._engine = engine

    def __len__(self) -> int:
        """Batches of an epoch, of this rank."""
        first, end = self._share
        whole, rest = divmod(end - first, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    @property
    def epoch(self) -> int:
        """The epoch of loops that begin now."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of loops that begin from now on, in running workers too."""
        self._epoch.fill_(_need("epoch", epoch, 0))

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}: {self.records} records of {list(self.record_shape)} "
            f"{self.dtype} in {len(self.paths)} files, {len(self)} batches>"
        )

    def numbers(self, batch: int) -> torch.Tensor:
        """The numbers of the records in a batch of this epoch, in the batch's order.

        Labels that are kept elsewhere are found by them:
        ``for index, batch in enumerate(records): labels[records.numbers(index)]``.

        Returns:
            int64 on the host, of the shape ``(records of the batch,)``.

        Raises:
            IndexError: the epoch has fewer batches.
        """
        if not 0 <= _index("batch", batch) < len(self):
            raise IndexError(f"there is no batch {batch}: an epoch has {len(self)} batches")
        return self._numbers(Order(self.records, self.shuffle, self.seed, self.epoch), batch)

    def _numbers(self, order: Order, batch: int) -> torch.Tensor:
        first, end = self._share
        begin = first + batch * self.batch_size
        return order.at(begin, min(self.batch_size, end - begin))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy has its own epoch; in a worker it is the dataset's.
        self._epoch = _shared(self._epoch)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return self.batches()

    def batches(self, first: int = 0) -> Iterator[torch.Tensor]:
        """The epoch's batches from number `first` on, to resume."""
        first = _need("first", first, 0)
        order = Order(self.records, self.shuffle, self.seed, self.epoch)
        worker: Any = torch.utils.data.get_worker_info()
        begin, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return self._handed_out(order, range(first + begin, len(self), step))

    def _handed_out(self, order: Order, numbers: range) -> Iterator[torch.Tensor]:
        ahead = Ahead(self._read(order, numbers), self.prefetch, "forebay-records")
        try:
            while True:
                try:
                    batch = ahead.take()
                except StopIteration:
                    return
                if batch.is_cuda:
                    # It was allocated on another stream, and is reused when this one is done.
                    batch.record_stream(torch.cuda.current_stream(batch.device))
                yield batch
                del batch  # it is not kept during the wait for the next one
        finally:
            ahead.close()

    def _read(self, order: Order, numbers: range) -> Generator[torch.Tensor, None, None]:
        """Runs in the thread that reads ahead."""
        engine = self._engine or _process.default_engine()
        files = _Files(engine, self.paths)
        # A stream without work: memory allocated on it is ready at once.
        cuda: Any = torch.cuda
        on_own = (
            cuda.stream(cuda.Stream(self.device)) if self.device.type == "cuda" else nullcontext()
        )
        for number in numbers:
            records = self._numbers(order, number)
            with on_own:
                shape = (len(records), *self.record_shape)
                batch = torch.empty(shape, dtype=self.dtype, device=self.device)
            self._fill(engine, files, batch, records)
            yield batch
            del batch

    def _fill(
        self, engine: Engine, files: _Files, batch: torch.Tensor, records: torch.Tensor
    ) -> None:
        # In the order of the files, so that adjacent records are read together.
        records, places = records.sort()
        file_of = torch.searchsorted(self._ends, records, right=True)
        needed, counts = torch.unique_consecutive(file_of, return_counts=True)
        zero = torch.zeros(1, dtype=torch.int64, device="cpu")
        begins = torch.cat([zero, self._ends])[file_of]
        offsets = ((records - begins) * self.record_bytes + self.header).tolist()
        at = (places * self.record_bytes).tolist()
        first = 0
        # One call, unless it needs more open files than allowed.
        for some, lengths in zip(needed.split(files.most), counts.split(files.most), strict=True):
            after = first + int(lengths.sum())
            engine.read_many(
                files=[files[number] for number in some.tolist()],
                file_of=(torch.searchsorted(some, file_of[first:after])).tolist(),
                offsets=offsets[first:after],
                lengths=[self.record_bytes] * (after - first),
                target=batch,
                at=at[first:after],
                stream=None,
            )
            first = after


class _Files:
    """Files by number, opened on use; the `most` files that were used last stay open."""

    def __init__(self, engine: Engine, paths: list[Path]) -> None:
        self._engine, self._paths = engine, paths
        self._open: OrderedDict[int, File] = OrderedDict()
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit == resource.RLIM_INFINITY:
            limit = _OPEN_MOST * _DESCRIPTORS_OF_FILE * _SHARE
        self.most = max(1, min(_OPEN_MOST, limit // (_DESCRIPTORS_OF_FILE * _SHARE)))

    def __getitem__(self, number: int) -> File:
        file = self._open.pop(number, None)
        if file is None:
            if len(self._open) == self.most:
                _, oldest = self._open.popitem(last=False)
                oldest.close()
            file = self._engine.open(self._paths[number])
        self._open[number] = file
        return file


def _listed(paths: Path | Iterable[Path]) -> list[Path]:
    if isinstance(paths, str | bytes | os.PathLike):
        return [paths]
    return list(paths)


def _shape(shape: Sequence[int] | int) -> tuple[int, ...]:
    found = shape_of("record_shape", shape)
    if any(length < 1 for length in found):
        raise ValueError(f"`record_shape` cannot be {found}: a record needs bytes")
    return found


def _shared(number: torch.Tensor) -> torch.Tensor:
    """A number in memory that worker processes share, if the system has such memory."""
    untyped: Any = number
    try:
        untyped.share_memory_()
    except RuntimeError:
        pass  # on such a system loaders have no workers either
    return number


def _records_of(path: Path, header: int, record_bytes: int) -> int:
    """The number of records in a file, which must hold nothing else."""
    path = local(path)
    try:
        there = os.stat(path)
        if stat.S_ISDIR(there.st_mode):
            raise OSError(errno.EISDIR, "it is a folder, not a file")
    except OSError as error:
        raise of_system(error, f"cannot open `{shown(path)}`", path) from None
    size = there.st_size
    if size < header or (size - header) % record_bytes:
        raise ValueError(
            f"`{shown(path)}` has {size} bytes: after a header of {header} that is not a multiple "
            f"of a record's {record_bytes}; check `record_shape`, `dtype` and `header`"
        )
    return (size - header) // record_bytes


def _need(name: str, value: Any, least: int) -> int:
    number = _index(name, value)
    if number < least:
        raise ValueError(f"`{name}` cannot be {number}: it takes a whole number from {least} up")
    return number


def _index(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"`{name}` cannot be `{value!r}`: it takes a whole number") from None
