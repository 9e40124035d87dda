"""Memory that the processes of a host share."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .._forebay import Engine
    from ._frameworks import Framework


class GpuMemory:
    """Memory on a GPU that other processes map. Their GPUs have to reach it.

    Attributes:
        own: the memory, one byte per element.
        handle: the text by which the others map it.
    """

    def __init__(self, torch: Any, engine: Engine, device: Any, nbytes: int) -> None:
        self._torch, self._engine, self._device = torch, engine, device
        memory = engine.allocate(nbytes, device)
        self.own, self.handle = torch.from_dlpack(memory), memory._shared().hex()

    def map(self, handle: str) -> Any:
        """Maps the memory of another process, which keeps it until this mapping is dropped."""
        mapped = self._engine._map_shared(bytes.fromhex(handle), self._device)
        return self._torch.from_dlpack(mapped)

    def mark(self) -> Any:
        """A function that waits until all copies so far have ended."""
        return self._torch.cuda.current_stream(self._device).record_event().synchronize


class HostMemory:
    """Memory on the host that other processes map, which see this one in `/proc`."""

    def __init__(self, kind: Framework, nbytes: int) -> None:
        self._kind, self._nbytes = kind, nbytes
        self._file = os.fdopen(os.memfd_create("forebay"), "r+b", buffering=0)
        self._file.truncate(nbytes)
        self.own = kind.bytes_of(mmap.mmap(self._file.fileno(), nbytes))
        self.handle = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def map(self, handle: str) -> Any:
        with open(handle, "r+b", buffering=0) as file:
            return self._kind.bytes_of(mmap.mmap(file.fileno(), self._nbytes))

    def mark(self) -> Callable[[], object]:
        return lambda: None
