"""The interface of all methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch  # type: ignore[import-not-found,unused-ignore]

    from ..model import Model


class Way(ABC):
    """A method of loading layers to the GPU, ahead of the compute."""

    name: ClassVar[str]
    #: The layers whose bytes are verified before the measurement.
    checked: ClassVar[str] = "every layer"
    #: How many layers it holds on the GPU at once.
    rooms: int = 2

    def __init__(self, model: Model, source: str, device: str, buffers: int) -> None:
        self.model, self.source, self.device, self.buffers = model, source, device, buffers

    @abstractmethod
    def run(
        self,
        layers: list[int],
        stream: torch.cuda.Stream,
        use: Callable[[int, torch.Tensor], None],
    ) -> None:
        """Loads the layers; ``use`` queues the work on each on ``stream``."""

    def statistics(self) -> dict[str, float]:
        """The sums of its own statistics since it was made."""
        return {}

    def forget(self) -> None:
        """Releases mappings of the file: the kernel does not evict mapped pages."""

    def close(self) -> None:
        """Releases its memory and its files."""
