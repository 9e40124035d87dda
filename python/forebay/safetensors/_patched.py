"""Makes other packages load safetensors files by Forebay."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ._open import safe_open

if TYPE_CHECKING:
    from .._types import Device, Path

_lock = threading.RLock()


@contextmanager
def patched(device: Device = None) -> Iterator[None]:
    """Makes transformers, diffusers and other packages load safetensors files by Forebay.

    `safe_open` replaces `safetensors.safe_open`, under every name that a module has for it, in all
    threads. Another thread that enters such a block waits until this one has left it. Blocks may be
    nested.

    Args:
        device: where tensors are loaded first, whatever a package requests: ``"cuda"`` avoids a
            copy in host memory. By default the package decides.

    >>> with forebay.safetensors.patched():
    ...     model = AutoModel.from_pretrained("folder")
    """
    import safetensors  # type: ignore[import-not-found,unused-ignore]

    asked = device

    class Opened(safe_open):
        def __init__(
            self, filename: Path, framework: str, device: Device = "cpu", *, backend: str = "mmap"
        ) -> None:
            of_numpy = framework in ("np", "numpy")
            super().__init__(filename, framework, device if of_numpy else asked or device)

    with _lock:
        before = safetensors.safe_open
        _exchange(before, Opened)
        try:
            yield
        finally:
            _exchange(Opened, before)


def _exchange(old: Any, new: Any) -> None:
    """Replaces a value in all modules."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name in [name for name, value in list(vars(module).items()) if value is old]:
                setattr(module, name, new)
