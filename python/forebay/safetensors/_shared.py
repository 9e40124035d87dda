"""Memory that the processes of a host share."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .._forebay import Engine
    from ._frameworks import Framework


class Memory(Protocol):
    """Memory of this process that other processes of the host map.

    Attributes:
        own: the memory, one byte per element.
        handle: the text by which the others map it.
    """

    own: Any
    handle: str

    def map(self, handle: str) -> Any:
        """The memory of another process, which keeps it until this one has dropped it."""

    def mark(self) -> None:
        """Copies between such memory and that of the framework have been queued."""

    def synchronize(self) -> None:
        """Waits until the copies before the last mark have ended."""


class GpuMemory:
    """Memory on a GPU. The GPUs of the other processes have to reach it."""

    def __init__(self, torch: Any, engine: Engine, device: Any, nbytes: int) -> None:
        self._torch, self._engine, self._device = torch, engine, device
        memory = engine.allocate(nbytes, device)
        self.own, self.handle = torch.from_dlpack(memory), memory._shared().hex()
        self._copied = torch.cuda.Event()

    def map(self, handle: str) -> Any:
        mapped = self._engine._map_shared(bytes.fromhex(handle), self._device)
        return self._torch.from_dlpack(mapped)

    def mark(self) -> None:
        self._copied.record(self._torch.cuda.current_stream(self._device))

    def synchronize(self) -> None:
        self._copied.synchronize()


class HostMemory:
    """Memory on the host. The processes have to see each other in `/proc`."""

    def __init__(self, kind: Framework, nbytes: int) -> None:
        self._kind, self._nbytes = kind, nbytes
        self._file = os.fdopen(os.memfd_create("forebay"), "r+b", buffering=0)
        self._file.truncate(nbytes)
        self.own = kind.bytes_of(mmap.mmap(self._file.fileno(), nbytes))
        self.handle = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def map(self, handle: str) -> Any:
        with open(handle, "r+b", buffering=0) as file:
            return self._kind.bytes_of(mmap.mmap(file.fileno(), self._nbytes))

    def mark(self) -> None:
        pass

    def synchronize(self) -> None:
        pass
