"""Layers by KvikIO, two buffers on the GPU, at its best settings."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar

import torch  # type: ignore[import-not-found,unused-ignore]

from ..theory import plan
from .way import Way

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..model import Model

# The best of those that were tried for resident files on an H200: 45.6 of 55.5 GB/s.
_THREADS = 16
_TASK = 4 << 20


class KvikIO(Way):
    """The next layer is read while one is computed; the host waits for both."""

    name: ClassVar[str] = "kvikio"

    def __init__(self, model: Model, source: str, device: str, buffers: int) -> None:
        super().__init__(model, source, device, buffers)
        import kvikio  # type: ignore[import-not-found,unused-ignore]
        import kvikio.defaults  # type: ignore[import-not-found,unused-ignore]

        kvikio.defaults.set({"num_threads": _THREADS, "task_size": _TASK})
        self._file: Any = kvikio.CuFile(model.path, "r")
        self._buffers = [
            torch.empty(model.nbytes, dtype=torch.uint8, device=device) for _ in range(self.rooms)
        ]

    @staticmethod
    def absent() -> str | None:
        try:
            import kvikio  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
        except Exception as error:  # whatever its libraries say
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
            """Begins all reads whose buffers are free when the turn before this one is over."""
            while waiting:
                number = waiting[0]
                buffer, after = planned[number].buffer, planned[number].after
                if after is not None and after >= turn:
                    return  # a wait for it would leave the GPU without work
                before = freed[buffer]
                if before is not None:
                    before.synchronize()  # it does not know the compute's stream
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
