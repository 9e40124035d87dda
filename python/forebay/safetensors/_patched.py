"""Makes other packages load safetensors files by Forebay."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ._frameworks import torch_device
from ._open import safe_open

if TYPE_CHECKING:
    from .._types import Device, Path

_lock = threading.RLock()

_current: list[Any] = []
"""What `safetensors.safe_open` was before the first block, and in each block that has begun."""


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

    chosen = device if device is None else torch_device(device)

    class Opened(safe_open):
        def __new__(cls, filename: Path, framework: str, *given: Any, **named: Any) -> Any:
            if framework not in ("pt", "torch", "pytorch", "np", "numpy"):
                return _current[0](filename, framework, *given, **named)
            return super().__new__(cls)

        def __init__(
            self, filename: Path, framework: str, device: Device = "cpu", *, backend: str = "mmap"
        ) -> None:
            of_numpy = framework in ("np", "numpy")
            device = device if of_numpy else chosen or device
            super().__init__(filename, framework, device, backend=backend)

    with _lock:
        if not _current:
            _current.append(safetensors.safe_open)
        _exchange(_current[-1], Opened)
        _current.append(Opened)
        try:
            yield
        finally:
            # Blocks of one thread, as in tasks of asyncio, may end in another order.
            before = _current[_current.index(Opened) - 1]
            _exchange(Opened, before)
            _current.remove(Opened)
            if len(_current) == 1:
                _current.clear()


def _exchange(old: Any, new: Any) -> None:
    """Replaces a value in all modules."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            for name in [name for name, value in list(vars(module).items()) if value is old]:
                setattr(module, name, new)
