"""Loads a model to the host and uses it, by Forebay and by safetensors, turn by turn.

``python benches/host_load.py FOLDER --out FOLDER`` makes models of one and of many tensors in
FOLDER, and writes each time to ``samples.csv`` and the ratios of medians to ``table.txt``. "Use" is
one pass over all bytes. A cold file is dropped from the page cache before each load.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import forebay
import forebay.safetensors
import safetensors
import safetensors.torch
import torch

GIB = 1 << 30


def used(tensors: Iterable[Any]) -> int:
    """The sum of all bytes, as numbers of 64 bits."""
    return sum(int(tensor.view(torch.int64).sum()) for tensor in tensors)


def opened(module: Any, path: Path) -> int:
    with module.safe_open(path, framework="pt") as file:
        return used(map(file.get_tensor, file.offset_keys()))


CASES: dict[str, tuple[Callable[[Path], int], Callable[[Path], int]]] = {
    "load_file": (
        lambda path: used(forebay.safetensors.load_file(path).values()),
        lambda path: used(safetensors.torch.load_file(path).values()),
    ),
    "safe_open": (
        lambda path: opened(forebay.safetensors, path),
        lambda path: opened(safetensors, path),
    ),
    "iterate": (
        lambda path: used(one for _, one in forebay.safetensors.iterate(path, device="cpu")),
        lambda path: opened(safetensors, path),
    ),
}


def model(folder: Path, nbytes: int, count: int) -> Path:
    path = folder / f"{count}.safetensors"
    if not path.exists():
        each = nbytes // count // 4096 * 4096
        tensors = {f"t{n}": torch.full((each // 8,), n, dtype=torch.int64) for n in range(count)}
        forebay.save_file(tensors, path)
    return path


def drop(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
        os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gib", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    samples = []
    for count in (1, 2000):
        path = model(given.folder, int(given.gib * GIB), count)
        for state in ("resident", "cold"):
            for turn in range(given.rounds + 1):
                for case, both in CASES.items():
                    # Who is first changes; the first round is not counted.
                    for who in (0, 1) if turn % 2 else (1, 0):
                        if state == "cold":
                            drop(path)
                        begun = time.perf_counter()
                        found = both[who](path)
                        seconds = time.perf_counter() - begun
                        if turn:
                            name = ("forebay", "safetensors")[who]
                            samples.append((count, state, case, turn, name, seconds, found))
    with open(given.out / "samples.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["tensors", "state", "case", "round", "library", "seconds", "sum"])
        writer.writerows(samples)
    lines = [
        f"{given.gib:g} GiB to the host, loaded and used; {platform.platform()}, "
        f"{os.cpu_count()} processors, torch {torch.__version__}, safetensors "
        f"{safetensors.__version__}, forebay {forebay.__version__}, {given.rounds} rounds",
        "tensors  state     case       forebay  safetensors  ratio (above 1: Forebay is faster)",
    ]
    for count, state, case in dict.fromkeys(one[:3] for one in samples):
        own = [one for one in samples if one[:3] == (count, state, case)]
        assert len({one[6] for one in own}) == 1, "both have the same bytes"
        ours, theirs = (
            statistics.median(one[5] for one in own if one[4] == name)
            for name in ("forebay", "safetensors")
        )
        lines.append(
            f"{count:7}  {state:8}  {case:9}  {ours:5.2f} s  {theirs:9.2f} s  {theirs / ours:.2f}"
        )
    text = "\n".join(lines)
    (given.out / "table.txt").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
