"""The references by hand: `by_hand.cu`, compiled for this machine and loaded."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".cu")


def build(folder: Path) -> Path | None:
    """The library, or ``None`` without `nvcc`."""
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        return None
    library = folder / "by_hand.so"
    command = [nvcc, "-O3", "-std=c++17", "-arch=native", "-shared", "-Xcompiler", "-fPIC"]
    subprocess.run([*command, "-o", library, SOURCE], check=True, timeout=300)
    return library


class ByHand:
    """Its functions. Each call releases the interpreter's lock once. Rates are GB/s."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.links.restype = ctypes.c_double
        self._library.new_reader.restype = ctypes.c_void_p
        self._library.new_reader.argtypes = [ctypes.c_size_t]
        size, address = ctypes.c_size_t, ctypes.c_void_p
        self._library.read_one.argtypes = [address, ctypes.c_int, size, size, address]
        self._library.small.argtypes = [
            ctypes.c_char_p, address, size, size, ctypes.c_int, ctypes.c_int, ctypes.c_char,
            ctypes.c_double, address,
        ]  # fmt: skip

    def links(self, gpus: int) -> float:
        """The links of the first `gpus` GPUs at once."""
        return float(self._library.links(gpus)) / 1e9

    def small(
        self, path: Path, target: int, nbytes: int, piece: int, threads: int, depth: int,
        method: str, seconds: float,
    ) -> tuple[float, float, float]:  # fmt: skip
        """Rate, 99th percentile of a round in ms, and CPU s/GB of random reads."""
        result = (ctypes.c_double * 3)()
        name = str(path).encode()
        self._library.small(
            name, target, nbytes, piece, threads, depth, method.encode(), seconds, result
        )
        return result[0] / 1e9, result[1] * 1e3, result[2]

    def reader(self, file: int, offset: int, nbytes: int, target: int) -> Callable[[], object]:
        """A call that reads `nbytes` at `offset` to the address `target`."""
        own, read = self._library.new_reader(nbytes), self._library.read_one
        return lambda: read(own, file, offset, nbytes, target)
