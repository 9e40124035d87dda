"""The machine of the measurements."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import forebay

_PACKAGES = ("forebay", "torch", "numpy")
_PREFIXES = ("FOREBAY_", "CUDA_", "PYTORCH_", "OMP_NUM_THREADS")


def described(device: str, path: Path) -> dict[str, Any]:
    """Versions, GPU, driver, processor, kernel, file system."""
    return {
        "device": device,
        "gpu": None if device == "cpu" else _gpu(device),
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


def _gpu(device: str) -> dict[str, Any]:
    torch: Any = importlib.import_module("torch")
    known = torch.cuda.get_device_properties(device)
    return {"name": known.name, "memory": known.total_memory, "cuda": torch.version.cuda}


def _driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
        return text.splitlines()[0].removeprefix("NVRM version: ").strip()
    except OSError:
        pass
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True)
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
