"""Loads layers by KvikIO, with two buffers on the GPU and its best settings."""

from __future__ import annotations

import time
from collections import deque
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

import torch  # type: ignore[import-not-found,unused-ignore]

from .. import residency
from ..sources import COLD
from ..theory import plan
from .way import Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import Model

#: Threads and task sizes: all are tried, and the fastest is used.
_KINDS = [(threads, mib << 20) for threads in (8, 16, 32) for mib in (4, 16)]
_TIMES = 3


class KvikIO(Way):
    """The next layer is read while one is computed; the host waits for both."""

    name: ClassVar[str] = "kvikio"

    def __init__(self, model: Model, source: str, device: str, buffers: int) -> None:
        super().__init__(model, source, device, buffers)
        import kvikio  # type: ignore[import-not-found,unused-ignore]

        self._file: Any = kvikio.CuFile(model.path, "r")
        self._buffers = [
            torch.empty(model.nbytes, dtype=torch.uint8, device=device) for _ in range(self.rooms)
        ]
        tried = {kind: [self._tried(kind) for _ in range(_TIMES)] for kind in _KINDS}
        threads, task = min(_KINDS, key=lambda kind: median(tried[kind]))
        self._set((threads, task))
        self.settings = {"num_threads": threads, "task_size": task}

    @staticmethod
    def _set(kind: tuple[int, int]) -> None:
        import kvikio.defaults  # type: ignore[import-not-found,unused-ignore]

        kvikio.defaults.set({"num_threads": kind[0], "task_size": kind[1]})

    def _tried(self, kind: tuple[int, int]) -> float:
        """Seconds of reading two layers at once with these settings."""
        self._set(kind)
        if self.source in COLD:
            residency.evict(self.model.path)
        began = time.perf_counter()
        reads = [
            self._file.pread(buffer, file_offset=self.model.offset(layer))
            for layer, buffer in enumerate(self._buffers)
        ]
        for read in reads:
            read.get()
        return time.perf_counter() - began

    @staticmethod
    def absent() -> str | None:
        try:
            import kvikio  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
        except Exception as error:  # its libraries may raise any
            return f"{type(error).__name__}: {error}"
        return None

    def run(
        self,
        layers: list[int],
        stream: torch.cuda.Stream,
        use: Callable[[int, torch.Tensor], None],
    ) -> None:
        planned = plan(layers, self.rooms)
        waiting = deque(number for number, turn in enumerate(planned) if turn.read)
        freed: list[torch.cuda.Event | None] = [None] * self.rooms
        coming: dict[int, Any] = {}

        def begin(turn: int) -> None:
            """Starts all reads whose buffers are free once the turn before this one has ended."""
            while waiting:
                number = waiting[0]
                buffer, after = planned[number].buffer, planned[number].after
                if after is not None and after >= turn:
                    return  # a wait for it would leave the GPU without work
                before = freed[buffer]
                if before is not None:
                    before.synchronize()  # KvikIO does not know the compute's stream
                offset = self.model.offset(layers[number])
                coming[number] = self._file.pread(self._buffers[buffer], file_offset=offset)
                waiting.popleft()

        begin(0)
        for number, layer in enumerate(layers):
            if number in coming:
                coming.pop(number).get()
            buffer = planned[number].buffer
            use(layer, self._buffers[buffer])
            freed[buffer] = stream.record_event()
            begin(number)

    def close(self) -> None:
        self._file.close()
