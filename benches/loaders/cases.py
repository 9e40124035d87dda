"""The cases: which loaders are compared, on which model, in which states of the page cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import loaders


class State(StrEnum):
    """Whether the files are in the page cache when a load begins."""

    RESIDENT = "resident"
    COLD = "cold"


BOTH = (State.RESIDENT, State.COLD)
RESIDENT, COLD = (State.RESIDENT,), (State.COLD,)


class Use(StrEnum):
    """What a load does with the tensors."""

    KEEP = "keep"
    """Keeps all of them until its end."""
    COPY = "copy"
    """Copies each, or the part of its rank, to memory that exists: the parameters of a server."""
    WRITE = "write"
    """Writes them. They are read back only for the check."""


@dataclass(frozen=True)
class Side:
    """A loader in one setting."""

    name: str
    load: Callable[[loaders.Job], loaders.Load]
    kind: str = "peer"
    """`ours`, a `peer`, or a `limit` of what is possible."""
    states: tuple[State, ...] = BOTH
    variables: dict[str, str] | None = None
    ranks: int = 1
    """Processes that load at once."""
    use: Use = Use.KEEP
    shares: bool = False
    """Each process has its share of every tensor."""
    raw: bool = False
    """Moves bytes without names: its tensors are not checked."""
    prepare: Callable[[loaders.Job], None] | None = None
    """Writes a form of the model that `load` reads, into the folder `prepared` of the job."""


@dataclass(frozen=True)
class Case:
    """Sides that are compared with the first one."""

    sides: list[Side]
    tensors: int = 8
    shards: int = 1


def _instanttensor(name: str, states: tuple[State, ...], **more: str) -> Side:
    variables = {"INSTANTTENSOR_CACHE_BUFFER": "1", **more}
    return Side(f"instanttensor, {name}", loaders.instanttensor, states=states, variables=variables)


def _kvikio(name: str, states: tuple[State, ...], **more: str) -> Side:
    variables = {"KVIKIO_NTHREADS": "16", "KVIKIO_TASK_SIZE": "4194304", **more}
    return Side(f"kvikio, {name}", loaders.kvikio, states=states, variables=variables)


OURS = Side("forebay load_file", loaders.forebay_load_file, "ours")
READ_INTO = Side("forebay read_into, no names", loaders.forebay_read_into, "limit", raw=True)
LINK = Side("one copy over the link", loaders.link, "limit", RESIDENT, raw=True)
DRIVE = Side("8 threads, O_DIRECT", loaders.drive, "limit", COLD, raw=True)
SAFETENSORS = Side("safetensors load_file", loaders.safetensors_load_file)

PEERS = [
    SAFETENSORS,
    *(
        Side(f"safetensors prefetch, {n}", partial(loaders.safetensors_prefetch, threads=n))
        for n in (8, 16)
    ),
    Side("instanttensor, default", loaders.instanttensor),
    _instanttensor("page cache", RESIDENT, INSTANTTENSOR_BACKEND="BUFFERED"),
    _instanttensor("kept buffers", COLD),
    Side("fastsafetensors, default", loaders.fastsafetensors),
    Side(
        "fastsafetensors, page cache",
        loaders.fastsafetensors,
        states=RESIDENT,
        variables={"FASTSAFETENSORS_ODIRECT": "0"},
    ),
    Side("runai, 16 readers", loaders.runai, variables={"RUNAI_STREAMER_CONCURRENCY": "16"}),
    Side(
        "runai, page cache",
        loaders.runai,
        states=RESIDENT,
        variables={
            "RUNAI_STREAMER_CONCURRENCY": "16",
            "RUNAI_STREAMER_FS_STRATEGY": "io_uring_buffered,sync_buffered",
        },
    ),
    Side("kvikio, default", loaders.kvikio),
    _kvikio("16 threads", RESIDENT),
    _kvikio("16 threads, direct", COLD, KVIKIO_AUTO_DIRECT_IO_READ="on"),
    Side(
        "flashpack",
        loaders.flashpack,
        # Without it a load to the host maps the file and reads nothing.
        variables={"FLASHPACK_CPU_PARALLEL_READ": "1"},
        prepare=loaders.flashpack_file,
    ),
]


def _ours(name: str, **changes: Any) -> Side:
    changes = {"kind": "ours", **changes}
    load = partial(loaders.forebay_load_file, options=changes.pop("options", ""))
    return Side(name, load, **changes)


def _dcp(name: str, kind: str, library: str) -> Side:
    load = partial(loaders.dcp_load, library=library)
    return Side(name, load, kind, RESIDENT, prepare=loaders.dcp_checkpoint)


def _dcp_save(name: str, kind: str, library: str) -> Side:
    load = partial(loaders.dcp_save, library=library)
    return Side(name, load, kind, RESIDENT, use=Use.WRITE)


def _servers(ranks: int, shares: bool) -> list[Side]:
    """Loaders of several ranks as servers use them: each tensor is copied to its parameter."""

    def side(name: str, load: Callable[[loaders.Job], loaders.Load], **more: Any) -> Side:
        return Side(name, load, ranks=ranks, use=Use.COPY, shares=shares, **more)

    def ours(options: str, **more: Any) -> Side:
        load = partial(loaders.forebay_iterate, options=options)
        return side(f"forebay iterate {options}=", load, **{"kind": "ours", **more})

    view = partial(loaders.instanttensor, copy=False)
    cached = {"FASTSAFETENSORS_ODIRECT": "0"}
    buffered = {"RUNAI_STREAMER_FS_STRATEGY": "io_uring_buffered,sync_buffered"}
    kept = {"INSTANTTENSOR_CACHE_BUFFER": "1"}
    files = {"load": loaders.fastsafetensors_iterate}
    whole = partial(loaders.fastsafetensors, slices=shares)
    return [
        ours("group"),
        side("instanttensor", view),
        side("runai", loaders.runai, states=COLD),
        side("runai, page cache", loaders.runai, states=RESIDENT, variables=buffered),
        ours("rank"),
        side("instanttensor, kept buffers", view, variables=kept),
        side("safetensors get_tensor", partial(loaders.one_by_one, library="safetensors")),
        *([ours("shard")] if shares else []),
        side("fastsafetensors", states=COLD, **files),
        side("fastsafetensors, page cache", states=RESIDENT, variables=cached, **files),
        side("fastsafetensors, files", whole, states=RESIDENT, variables=cached),
        *([] if shares else [ours("own", kind="limit", raw=True)]),
        side("instanttensor, page cache", view, states=RESIDENT,
             variables={**kept, "INSTANTTENSOR_BACKEND": "BUFFERED"}),
        side("safetensors prefetch, 16", partial(loaders.safetensors_prefetch, threads=16)),
        side("fastsafetensors, GDS", partial(whole, gds=True), states=COLD),
    ]  # fmt: skip


def _of_ranks(ranks: int) -> Case:
    """All tensors to all ranks."""
    whole = _ours("forebay load_file group=", options="group", ranks=ranks)
    return Case([whole, *_servers(ranks, shares=False)], tensors=64, shards=8)


def _slices(ranks: int) -> Case:
    """A part of each tensor to each rank, as tensor-parallel servers use them."""
    return Case(
        [
            _ours("forebay load_file shard=", options="shard", ranks=ranks, shares=True),
            *_servers(ranks, shares=True),
            Side("safetensors slices", loaders.safetensors_slices, ranks=ranks, shares=True),
            Side("all links at once", loaders.link, "limit", RESIDENT, raw=True, ranks=ranks),
        ],
        tensors=64,
        shards=8,
    )


CASES = {
    "load": Case([OURS, READ_INTO, LINK, DRIVE, *PEERS]),
    "experts": Case([OURS, READ_INTO, *PEERS], tensors=2738, shards=16),
    "iterate": Case(
        [
            Side("forebay iterate, 1 GiB", loaders.forebay_iterate, "ours", use=Use.COPY),
            _ours("forebay load_file", kind="limit"),
        ]
    ),
    "one-by-one": Case(
        [
            Side("forebay get_tensor", partial(loaders.one_by_one, library="forebay.safetensors"),
                 "ours"),
            _ours("forebay load_file", kind="limit"),
            Side("safetensors get_tensor", partial(loaders.one_by_one, library="safetensors")),
        ]
    ),
    **{f"ranks-{ranks}": _of_ranks(ranks) for ranks in (2, 4, 8)},
    **{f"experts-{ranks}": replace(_of_ranks(ranks), tensors=2738) for ranks in (2, 4, 8)},
    **{f"slices-{ranks}": _slices(ranks) for ranks in (2, 4, 8)},
    "dcp-load": Case(
        [
            _dcp("forebay.torch.dcp.Reader", "ours", "forebay"),
            _dcp("torch FileSystemReader", "peer", "torch"),
        ]
    ),
    "dcp-save": Case(
        [
            _dcp_save("forebay.torch.dcp.Writer", "ours", "forebay"),
            Side("8 threads, O_DIRECT", partial(loaders.drive, write=True), "limit", RESIDENT,
                 raw=True),
            _dcp_save("torch FileSystemWriter", "peer", "torch"),
        ]
    ),
}  # fmt: skip
