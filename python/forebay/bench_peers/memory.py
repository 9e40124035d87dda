"""How much memory a load takes, on the host and on the GPU, beyond the tensors.

Two figures. The kernel's peak of resident memory (`VmHWM`) has what the process touched, mapped
files and pinned memory too: no loader was seen to have writable memory mapped from the driver's
devices, which would count nowhere. And the driver says how much of the GPU is free, which is about
all processes: no other may use it.
"""

from __future__ import annotations

import threading
from typing import Any

from .sides.side import torch

_SAMPLE_S = 0.02


def forget_peak() -> None:
    """Begins the peak of resident memory anew."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass  # then the peak is that of the whole process, as it is told


def resident() -> int:
    """Bytes of resident memory now."""
    return _status("VmRSS")


def resident_most() -> int:
    """Bytes of resident memory at the peak."""
    return _status("VmHWM")


def _status(field: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    return 0


def used_on_gpu(device: str) -> int:
    """Bytes of the GPU that are not free."""
    if device == "cpu":
        return 0
    free, total = torch().cuda.mem_get_info(torch().device(device))
    return int(total - free)


class Watch:
    """Looks again and again, from a thread, and keeps the most that it saw."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.on_gpu = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _look(self) -> None:
        self.on_gpu = max(self.on_gpu, used_on_gpu(self._device))

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self._look()
