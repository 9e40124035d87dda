"""What the figures were measured on."""

from __future__ import annotations

import importlib.metadata
import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import forebay

from .sides.side import is_there, torch

_PACKAGES = (
    "forebay",
    "torch",
    "safetensors",
    "kvikio-cu13",
    "kvikio-cu12",
    "instanttensor",
    "fastsafetensors",
    "runai-model-streamer",
    "flashpack",
    "numpy",
)


def described(device: str, path: Path) -> dict[str, Any]:
    """Versions, GPU, driver, processor, kernel, file system."""
    return {
        "device": _device(device),
        "gpu": _gpu(device),
        "driver": _driver(),
        "python": platform.python_version(),
        "packages": _packages(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "file_system": _file_system(path),
        "variables": {
            name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES)
        },
    }


_PREFIXES = (
    "FOREBAY_",
    "KVIKIO_",
    "INSTANTTENSOR_",
    "FASTSAFETENSORS_",
    "RUNAI_STREAMER_",
    "FLASHPACK_",
    "CUDA_",
    "PYTORCH_",
    "OMP_NUM_THREADS",
)


def _device(wanted: str) -> str:
    """The device that is loaded to: the first GPU where `auto` finds one, with torch to see it."""
    if wanted == "auto":
        return "cuda:0" if is_there("torch") and torch().cuda.is_available() else "cpu"
    if wanted == "cpu":
        return wanted
    if not is_there("torch"):
        raise RuntimeError(f"`{wanted}` needs torch, to hold and to check the tensors")
    device = torch().device(wanted)
    if device.type != "cuda":
        raise RuntimeError(f"no device `{wanted}`: give `cuda:0` or `cpu`")
    torch().empty(1, device=device)
    return f"cuda:{device.index or 0}"


def _gpu(device: str) -> dict[str, Any] | None:
    device = _device(device)
    if device == "cpu":
        return None
    known = torch().cuda.get_device_properties(device)
    return {"name": known.name, "memory": known.total_memory, "cuda": torch().version.cuda}


def _driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
        return text.splitlines()[0].removeprefix("NVRM version: ").strip()
    except OSError:
        pass
    ask = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return None


def _packages() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _field(path: str, name: str) -> str | None:
    try:
        with open(path) as file:
            for line in file:
                if line.startswith(name):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return None


def _file_system(path: Path) -> dict[str, Any]:
    with forebay.open(path) as file:
        about = file.about()
    return {key: value for key, value in about.items() if isinstance(value, str | int | bool)}


def touch_memory(nbytes: int) -> None:
    """Writes to memory, which a virtual machine may get only so, and gives it back."""
    available = int((_field("/proc/meminfo", "MemAvailable") or "0").split()[0]) * 1024
    length = min(nbytes, available // 2) // mmap.PAGESIZE * mmap.PAGESIZE
    if length == 0:
        return
    with mmap.mmap(-1, length) as memory:
        for begin in range(0, length, mmap.PAGESIZE):
            memory[begin] = 1


def command() -> list[str]:
    """The command that this process was started with."""
    return [sys.executable, "-m", "forebay.bench_peers", *sys.argv[1:]]
