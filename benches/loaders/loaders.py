"""The loaders. Each function imports its library and returns a function that loads a model once.

That returns a context manager: its entry is the load, it yields names and tensors, and its exit
frees them.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import mmap
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import model

Pairs: TypeAlias = Iterable[tuple[str, Any]]
Load: TypeAlias = Callable[[], AbstractContextManager[Pairs]]

THREADS, BLOCK = 8, 8 << 20


class Missing(Exception):
    """Why a loader cannot be measured here."""


@dataclass(frozen=True)
class Job:
    """What one process loads, and where to."""

    paths: list[str]
    device: str
    rank: int
    ranks: int
    folder: str
    """For files of its own."""
    prepared: str
    """Where `Side.prepare` writes."""


def _module(name: str) -> Any:
    return importlib.import_module(name)


def _needs_gpu(job: Job) -> None:
    if job.device == "cpu":
        raise Missing("loads to GPUs only")


def _divided(job: Job, options: str) -> tuple[list[str], dict[str, Any]]:
    """Files and arguments of a rank, for `shard`, `rank`, `group`, or `own`: disjoint files."""

    def share(name: str, shape: tuple[int, ...]) -> tuple[int, int, int]:
        return (0, job.rank, job.ranks)

    given: dict[str, dict[str, Any]] = {
        "shard": {"shard": share},
        "rank": {"rank": job.rank, "world_size": job.ranks},
    }
    if options == "group":
        return job.paths, {"group": _group(job)}
    paths = job.paths[job.rank :: job.ranks] if options == "own" else job.paths
    return paths, given.get(options, {})


def forebay_load_file(job: Job, options: str = "") -> Load:
    from forebay.safetensors import load_file

    paths, chosen = _divided(job, options)

    @contextmanager
    def load() -> Iterator[Pairs]:
        yield load_file(paths, job.device, **chosen).items()

    return load


def _group(job: Job) -> Any:
    """A process group of torch over the ranks, whose GPUs are connected before the first load."""
    import torch

    distributed = _module("torch.distributed")
    where = f"file://{job.folder}/group"
    given: dict[str, Any] = {"backend": "gloo"}
    if job.device != "cpu":
        given = {"backend": "nccl", "device_id": torch.device(job.device)}
    distributed.init_process_group(
        init_method=where, rank=job.rank, world_size=job.ranks, **given
    )
    return distributed.group.WORLD


def forebay_read_into(job: Job) -> Load:
    """Each file to one tensor of bytes."""
    import forebay
    import torch

    @contextmanager
    def load() -> Iterator[Pairs]:
        with ExitStack() as stack:
            opened = [stack.enter_context(forebay.open(path)) for path in job.paths]
            targets = [torch.empty(file.size, dtype=torch.uint8, device=job.device)
                       for file in opened]  # fmt: skip
            transfers = [file.start_read_into(one) for file, one in zip(opened, targets)]
            for transfer in transfers:
                transfer.result()
        yield zip(job.paths, targets)

    return load


def forebay_iterate(job: Job, options: str = "") -> Load:
    from forebay.safetensors import iterate

    paths, chosen = _divided(job, options)

    @contextmanager
    def load() -> Iterator[Pairs]:
        yield iterate(paths, device=job.device, window="1GiB", **chosen)

    return load


def one_by_one(job: Job, library: str) -> Load:
    """`get_tensor` for one tensor after another, in the order of the file."""
    safe_open = _module(library).safe_open

    def tensors() -> Iterator[tuple[str, Any]]:
        for path in job.paths:
            with safe_open(path, framework="pt", device=job.device) as file:
                for name in file.offset_keys():
                    yield name, file.get_tensor(name)

    @contextmanager
    def load() -> Iterator[Pairs]:
        yield tensors()

    return load


def safetensors_slices(job: Job) -> Load:
    """Rows of each tensor, as a tensor-parallel server slices them."""
    from safetensors import safe_open

    def tensors() -> Iterator[tuple[str, Any]]:
        for path in job.paths:
            with safe_open(path, framework="pt", device=job.device) as file:
                for name in file.offset_keys():
                    part = file.get_slice(name)
                    rows = part.get_shape()[0] // job.ranks
                    yield name, part[rows * job.rank : rows * (job.rank + 1)]

    @contextmanager
    def load() -> Iterator[Pairs]:
        yield tensors()

    return load


def safetensors_load_file(job: Job) -> Load:
    from safetensors.torch import load_file

    @contextmanager
    def load() -> Iterator[Pairs]:
        loaded = [load_file(path, device=job.device).items() for path in job.paths]
        yield itertools.chain.from_iterable(loaded)

    return load


def safetensors_prefetch(job: Job, threads: int) -> Load:
    library = _module("safetensors")
    if not hasattr(library.safe_open, "prefetch"):
        raise Missing(f"safetensors {library.__version__} has no `prefetch`")
    _needs_gpu(job)

    def tensors() -> Iterator[tuple[str, Any]]:
        for path in job.paths:
            with library.safe_open(path, framework="pt", device=job.device) as file:
                with file.prefetch(threads=threads) as loaded:
                    yield from dict(loaded).items()

    @contextmanager
    def load() -> Iterator[Pairs]:
        yield tensors()

    return load


def instanttensor(job: Job, copy: bool = True) -> Load:
    """`copy=False` gives views of a buffer that the next tensors overwrite."""
    library = _module("instanttensor")
    _needs_gpu(job)
    group = None if job.ranks == 1 else _group(job)

    @contextmanager
    def load() -> Iterator[Pairs]:
        opened = library.safe_open(
            list(job.paths), "pt", job.device, process_group=group, copy=copy
        )
        with opened as file:
            yield file.tensors()

    return load


def _fastsafetensors(job: Job) -> tuple[Any, Any]:
    """The library, and the group of the ranks."""
    library = _module("fastsafetensors")
    if job.device != "cpu":
        try:
            ctypes.CDLL("libcudart.so")
        except OSError as error:
            raise Missing("it opens `libcudart.so`: link that name to torch's library") from error
    return library, library.SingleGroup() if job.ranks == 1 else _group(job)


def fastsafetensors(job: Job, slices: bool = False, gds: bool = False) -> Load:
    """Whole files to the GPUs of the ranks, and each tensor, or slices of it, to all ranks."""
    library, group = _fastsafetensors(job)

    @contextmanager
    def load() -> Iterator[Pairs]:
        loader = library.SafeTensorsFileLoader(group, job.device, nogds=not gds)
        loader.add_filenames({rank: job.paths[rank :: job.ranks] for rank in range(job.ranks)})
        buffers = loader.copy_files_to_device()
        yield (
            (name, buffers.get_sharded(name, 0) if slices else buffers.get_tensor(name))
            for name in loader.get_keys()
        )
        buffers.close()
        loader.close()

    return load


def fastsafetensors_iterate(job: Job) -> Load:
    """As vLLM and SGLang load with it: files in turn, tensors together in broadcasts."""
    library, group = _fastsafetensors(job)
    make = _module("fastsafetensors.parallel_loader").ParallelLoader

    @contextmanager
    def load() -> Iterator[Pairs]:
        loader = make(group, list(job.paths), device=job.device, nogds=True,
                      use_tqdm_on_load=False, accumulate_resident=False)  # fmt: skip
        yield loader.iterate_weights()
        loader.close()

    return load


def runai(job: Job) -> Load:
    """To the host, and each tensor to the GPU by torch; of a group, by the library."""
    library = _module("runai_model_streamer")
    given: dict[str, Any] = {}
    if job.ranks > 1:
        _group(job)
        given = {"device": job.device, "is_distributed": True, "owned": False}

    @contextmanager
    def load() -> Iterator[Pairs]:
        with library.SafetensorsStreamer() as streamer:
            streamer.stream_files(job.paths, **given)
            yield ((name, tensor.to(job.device)) for name, tensor in streamer.get_tensors())

    return load


def kvikio(job: Job) -> Load:
    """Each file to one tensor of bytes, and views of it under the tensors' names."""
    library = _module("kvikio")
    _needs_gpu(job)
    import torch

    sizes = {path: os.path.getsize(path) for path in job.paths}
    tensors = list(model.mapped(job.paths))
    begins = dict(sizes)
    for path, _, tensor in tensors:
        begins[path] -= tensor.nbytes  # the data is the end of a file

    def views(targets: dict[str, Any]) -> Iterator[tuple[str, Any]]:
        at = dict(begins)
        for path, name, tensor in tensors:
            begin, end = at[path], at[path] + tensor.nbytes
            part = targets[path][begin:end]
            if begin % tensor.itemsize:
                part = part.clone()  # memory of this type has to be aligned
            yield name, part.view(tensor.dtype).view(tensor.shape)
            at[path] = end

    @contextmanager
    def load() -> Iterator[Pairs]:
        targets = {path: torch.empty(size, dtype=torch.uint8, device=job.device)
                   for path, size in sizes.items()}  # fmt: skip
        with ExitStack() as stack:
            opened = [stack.enter_context(library.CuFile(path, "r")) for path in job.paths]
            for future in [file.pread(targets[path]) for file, path in zip(opened, job.paths)]:
                future.get()
        yield views(targets)

    return load


def flashpack_file(job: Job) -> None:
    tensors = {name: tensor for _, name, tensor in model.mapped(job.paths)}
    _module("flashpack").pack_to_file(tensors, f"{job.prepared}/model.flashpack", None)


def flashpack(job: Job) -> Load:
    """From a file of its own format."""
    library = _module("flashpack.deserialization")

    @contextmanager
    def load() -> Iterator[Pairs]:
        path = f"{job.prepared}/model.flashpack"
        yield library.iterate_from_flash_tensor(*library.read_flashpack_file(path, job.device))

    return load


def link(job: Job) -> Load:
    """Copies of pinned memory to the GPU, as many bytes as the rank's share of the model."""
    _needs_gpu(job)
    import torch

    length = sum(tensor.nbytes for _, _, tensor in model.mapped(job.paths)) // job.ranks
    source = torch.empty(min(length, 1 << 30), dtype=torch.uint8, pin_memory=True)

    @contextmanager
    def load() -> Iterator[Pairs]:
        target = torch.empty(length, dtype=torch.uint8, device=job.device)
        for part in target.split(len(source)):
            part.copy_(source[: len(part)], non_blocking=True)
        yield [("all", target)]

    return load


def drive(job: Job, write: bool = False) -> Load:
    """All files by threads, with O_DIRECT, through memory that is reused."""
    local = threading.local()
    sizes = [os.path.getsize(path) for path in job.paths]
    paths = [f"{job.folder}/written-{number}" if write else path
             for number, path in enumerate(job.paths)]  # fmt: skip

    def allocate() -> None:
        local.memory = mmap.mmap(-1, BLOCK)

    def move(file: int, at: int, size: int) -> None:
        if write:
            done = os.pwrite(file, local.memory, at)
        else:
            done = os.preadv(file, [local.memory], at)
        if done < min(BLOCK, size - at):
            raise OSError(f"short transfer of {done} bytes at {at}")

    @contextmanager
    def load() -> Iterator[Pairs]:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if write else os.O_RDONLY
        flags |= os.O_CLOEXEC | os.O_DIRECT
        opened = [os.open(path, flags) for path in paths]
        parts = [(file, at, size) for file, size in zip(opened, sizes, strict=True)
                 for at in range(0, size, BLOCK)]  # fmt: skip
        with ThreadPoolExecutor(THREADS, initializer=allocate) as pool:
            for _ in pool.map(lambda part: move(*part), parts):
                pass
        for file in opened:
            if write:
                os.fsync(file)
            os.close(file)
        yield []

    return load


def _dcp(library: str, kind: str) -> Any:
    """The class of `library` that is a reader or a writer of checkpoints."""
    where, name = "torch.distributed.checkpoint", f"FileSystem{kind}"
    if library == "forebay":
        where, name = "forebay.torch.dcp", kind
    if not hasattr(_module(where), name):
        raise Missing(f"`{where}` has no `{name}`")
    return getattr(_module(where), name)


def dcp_checkpoint(job: Job) -> None:
    tensors = {name: tensor for _, name, tensor in model.mapped(job.paths)}
    writer = _dcp("torch", "Writer")(job.prepared)
    _module("torch.distributed.checkpoint").save(tensors, storage_writer=writer, no_dist=True)


def dcp_load(job: Job, library: str) -> Load:
    make = _dcp(library, "Reader")
    dcp = _module("torch.distributed.checkpoint")
    torch = _module("torch")
    mapped = {name: tensor for _, name, tensor in model.mapped(job.paths)}

    @contextmanager
    def load() -> Iterator[Pairs]:
        state = {name: torch.empty_like(one, device=job.device) for name, one in mapped.items()}
        dcp.load(state, storage_reader=make(job.prepared), no_dist=True)
        yield state.items()

    return load


def dcp_save(job: Job, library: str) -> Load:
    """Saves, and yields the tensors that torch's reader loads then."""
    make = _dcp(library, "Writer")
    dcp = _module("torch.distributed.checkpoint")
    torch = _module("torch")
    state = {name: one.to(job.device, copy=True) for _, name, one in model.mapped(job.paths)}
    numbers = itertools.count()

    def found(folder: Path) -> Iterator[tuple[str, Any]]:
        back = {name: torch.empty_like(tensor) for name, tensor in state.items()}
        dcp.load(back, storage_reader=_dcp("torch", "Reader")(folder), no_dist=True)
        yield from back.items()

    @contextmanager
    def load() -> Iterator[Pairs]:
        folder = Path(job.folder) / f"saved-{next(numbers)}"
        # As many threads as write to the drive in the limit; Forebay has its own.
        more = {} if library == "forebay" else {"thread_count": THREADS}
        dcp.save(state, storage_writer=make(folder, **more), no_dist=True)
        yield found(folder)
        shutil.rmtree(folder)

    return load
