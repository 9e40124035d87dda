"""What every way does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch  # type: ignore[import-not-found,unused-ignore]

    from ..model import Model


class Way(ABC):
    """A way to bring layers to the GPU, ahead of the compute."""

    name: ClassVar[str]
    #: Whose bytes are looked at before anything is measured.
    checked: ClassVar[str] = "every layer"
    #: How many layers it holds on the GPU at once.
    rooms: int = 2

    def __init__(self, model: Model, source: str, device: str, buffers: int) -> None:
        self.model, self.source, self.device, self.buffers = model, source, device, buffers
        #: The best of what was tried out.
        self.settings: dict[str, int] = {}

    @staticmethod
    def absent() -> str | None:
        """Why it cannot be taken here; ``None``: it can."""
        return None

    @abstractmethod
    def run(
        self,
        layers: list[int],
        stream: torch.cuda.Stream,
        use: Callable[[int, torch.Tensor], None],
    ) -> None:
        """Brings the layers; ``use`` queues on ``stream`` what uses each."""

    def told(self) -> dict[str, float]:
        """What its own statistics sum up to since it was made."""
        return {}

    def forget(self) -> None:
        """Lets go of what keeps the file's bytes in memory: the kernel forgets no mapped page."""

    def close(self) -> None:
        """Gives back what it holds."""
