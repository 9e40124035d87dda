"""Layers by KvikIO, two buffers on the GPU, at its best settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch  # type: ignore[import-not-found,unused-ignore]

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
            torch.empty(model.nbytes, dtype=torch.uint8, device=device) for _ in range(2)
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
        freed: list[torch.cuda.Event | None] = [None, None]

        def begin(turn: int) -> Any:
            before = freed[turn % 2]
            if before is not None:
                before.synchronize()  # it does not know the compute's stream
            return self._file.pread(
                self._buffers[turn % 2], file_offset=self.model.offset(layers[turn])
            )

        coming = [begin(turn) for turn in range(min(2, len(layers)))]
        for turn, layer in enumerate(layers):
            coming[turn].get()
            use(layer, self._buffers[turn % 2])
            freed[turn % 2] = stream.record_event()
            if 1 <= turn < len(layers) - 1:
                coming.append(begin(turn + 1))

    def close(self) -> None:
        self._file.close()
