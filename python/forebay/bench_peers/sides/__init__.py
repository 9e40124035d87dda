"""Everything that loads a file here: Forebay, its limits, and other libraries."""

from __future__ import annotations

from .bounds import Drive, Link
from .ours import Forebay
from .peers import FastSafetensors, FlashPack, InstantTensor, KvikIO, RunAI, Safetensors
from .side import Loaded, Side

__all__ = ["ALL", "Loaded", "Side", "named"]

ALL: list[Side] = [
    Forebay(),
    Forebay("through the page cache", states=("cold",), direct_io=False),
    Link(),
    Drive(),
    KvikIO(),
    KvikIO(
        "16 threads x 4 MiB",
        states=("resident",),
        variables={"KVIKIO_NTHREADS": "16", "KVIKIO_TASK_SIZE": "4194304"},
    ),
    KvikIO(
        "16 threads x 4 MiB, direct",
        states=("cold",),
        variables={
            "KVIKIO_NTHREADS": "16",
            "KVIKIO_TASK_SIZE": "4194304",
            "KVIKIO_AUTO_DIRECT_IO_READ": "on",
        },
    ),
    InstantTensor(),
    InstantTensor("buffers kept", variables={"INSTANTTENSOR_CACHE_BUFFER": "1"}),
    InstantTensor(
        "buffers kept, page cache",
        states=("resident",),
        variables={"INSTANTTENSOR_CACHE_BUFFER": "1", "INSTANTTENSOR_BACKEND": "BUFFERED"},
    ),
    FastSafetensors(),
    FastSafetensors("page cache", variables={"FASTSAFETENSORS_ODIRECT": "0"}),
    RunAI(),
    RunAI("16 readers", variables={"RUNAI_STREAMER_CONCURRENCY": "16"}),
    FlashPack(),
    Safetensors(),
    Safetensors("prefetch, 8 threads", threads=8),
    Safetensors("prefetch, 16 threads", threads=16),
]


def named(name: str, setting: str) -> Side:
    """The side with this name and setting."""
    return next(side for side in ALL if (side.name, side.setting) == (name, setting))
