"""The bars of the Python package: `python python/bars --scratch FOLDER --out FOLDER`.

Each is measured interleaved with its limit, in one run. The machine and the raw samples
are written next to a summary.
"""

from __future__ import annotations

import argparse
import array
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay

GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10


class Bars:
    """A measured value, and its bar."""

    def __init__(self, scratch: Path, device: str, tiny: bool) -> None:
        self.scratch, self.device, self.tiny = scratch, device, tiny
        self.results: list[dict[str, Any]] = []
        self.samples: dict[str, list[float]] = {}

    def check(self, name: str, what: str, value: float, bound: str) -> None:
        word, limit = bound.split()
        passed = value >= float(limit) if word == ">=" else value <= float(limit)
        self.results.append(
            {"bar": name, "what": what, "measured": value, "must_be": bound, "passed": passed}
        )
        verdict = "pass" if passed else "FAIL"
        print(f"{name:20} {what:52} {value:9.4f}  {bound:9} {verdict}", flush=True)

    def take(self, name: str, run: Callable[[], float]) -> float:
        """A sample, in the unit that the bar is about."""
        value = run()
        self.samples.setdefault(name, []).append(value)
        return value

    def median(self, name: str) -> float:
        return statistics.median(self.samples[name])

    def file(self, name: str, nbytes: int) -> Path:
        """A resident file of random bytes."""
        path = self.scratch / name
        part = random.Random(len(name)).randbytes(min(nbytes, 64 * MIB))
        with open(path, "wb") as file:
            for at in range(0, nbytes, len(part)):
                file.write(part[: nbytes - at])
        return path


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def tensor(bars: Bars) -> None:
    """A resident file to a tensor, compared with one copy of pinned memory."""
    import torch

    nbytes = 8 * MIB if bars.tiny else 8 * GIB
    path = bars.file("large", nbytes)
    target = torch.empty(nbytes, dtype=torch.uint8, device=bars.device)
    on_gpu = bars.device != "cpu"
    pinned = torch.empty(min(nbytes, GIB), dtype=torch.uint8, pin_memory=on_gpu)

    def link() -> float:
        def copy() -> None:
            for at in range(0, nbytes, len(pinned)):
                target[at : at + len(pinned)].copy_(pinned, non_blocking=True)
            if on_gpu:
                torch.cuda.synchronize()

        return nbytes / seconds(copy) / 1e9

    with forebay.open(path) as file:
        assert file.read_into(target) == nbytes
        expected = path.read_bytes()[-1000:]
        assert bytes(target[-1000:].cpu().tolist()) == expected, "wrong bytes"
        link()
        for _ in range(3 if bars.tiny else 9):
            bars.take("link, GB/s", link)
            bars.take("tensor, GB/s", lambda: nbytes / seconds(lambda: file.read_into(target)) / 1e9)
    share = bars.median("tensor, GB/s") / max(bars.samples["link, GB/s"])
    bars.check("tensor", "share of the link, 8 GiB resident", share, ">= 0.97")
    path.unlink()


def calls(bars: Bars) -> None:
    """The cost of a call of no bytes: that of the layer and its queries alone."""
    path = bars.file("small", MIB)
    count = 200 if bars.tiny else 20_000
    with forebay.open(path) as file:
        targets: dict[str, Any] = {"bytearray": bytearray(4096)}
        try:
            import torch

            targets["tensor"] = torch.empty(4096, dtype=torch.uint8, device=bars.device)
        except ImportError:
            pass
        try:
            import numpy

            targets["numpy"] = numpy.empty(4096, numpy.uint8)
        except ImportError:
            pass
        for name, target in targets.items():
            for size in [0, 4096]:

                def work(target: Any = target, size: int = size) -> None:
                    for _ in range(count):
                        file.read_into(target, 0, size=size)

                work()
                for _ in range(5):
                    key = f"call of {size} B, {name}, us"
                    bars.take(key, lambda: seconds(work) / count * 1e6)
            value = bars.median(f"call of 0 B, {name}, us")
            bars.check("calls", f"µs for a call of no bytes to a {name}", value, "<= 5")
    path.unlink()


def requests(bars: Bars) -> None:
    """The cost of a request in a call of many, without the engine's work: requests of no bytes."""
    path = bars.file("many", MIB)
    count = 1000 if bars.tiny else 100_000
    engine = forebay.default_engine()
    target = bytearray(4096)
    with forebay.open(path) as file:
        zeros, addresses = array.array("q", [0]) * count, array.array("Q", [4096]) * count
        tuples = [(file, 0, 0, 4096)] * count

        def by_arrays() -> None:
            engine.read_many(
                files=file, offsets=zeros, lengths=zeros, addresses=addresses, device="cpu"
            )

        def by_target() -> None:
            engine.read_many(files=file, offsets=zeros, lengths=zeros, target=target, at=zeros)

        def by_tuples() -> None:
            engine.read_many(tuples, device="cpu")

        ways = {"arrays": by_arrays, "arrays in a target": by_target, "tuples": by_tuples}
        for name, way in ways.items():
            way()
            for _ in range(5):
                bars.take(f"request by {name}, us", lambda way=way: seconds(way) / count * 1e6)
    for name, bound in [("arrays", "<= 0.1"), ("arrays in a target", "<= 0.1"), ("tuples", "<= 1")]:
        value = bars.median(f"request by {name}, us")
        bars.check("requests", f"µs for a request by {name}", value, bound)
    path.unlink()


def pieces(bars: Bars) -> None:
    """100,000 requests of 64 KiB over 1,000 files, to scattered places of a tensor."""
    import torch

    files, each, piece = (10, 10, 64 * KIB) if bars.tiny else (1000, 100, 64 * KIB)
    count = files * each
    engine = forebay.default_engine()
    paths = [bars.file(f"piece-{number}", each * piece) for number in range(files)]
    target = torch.empty(count * piece, dtype=torch.uint8, device=bars.device)
    pinned = torch.empty(count * piece // 8, dtype=torch.uint8, pin_memory=bars.device != "cpu")
    order = list(range(count))
    random.Random(5).shuffle(order)
    opened = [engine.open(path) for path in paths]
    arrays: dict[str, Any] = {
        "file_of": array.array("q", [number // each for number in range(count)]),
        "offsets": array.array("q", [number % each * piece for number in range(count)]),
        "lengths": array.array("q", [piece]) * count,
        "addresses": array.array("Q", [target.data_ptr() + at * piece for at in order]),
    }

    def link() -> float:
        def copy() -> None:
            for at in range(0, len(target), len(pinned)):
                target[at : at + len(pinned)].copy_(pinned, non_blocking=True)
            if bars.device != "cpu":
                torch.cuda.synchronize()

        return len(target) / seconds(copy) / 1e9

    def read() -> None:
        result = engine.read_many(files=opened, device=bars.device, **arrays)
        assert len(result) == count

    read()
    for number in random.Random(6).sample(range(count), 20):
        at = order[number] * piece
        got = bytes(target[at : at + piece].cpu().numpy())
        with open(paths[number // each], "rb") as plain:
            plain.seek(number % each * piece)
            assert got == plain.read(piece), "wrong bytes"
    for _ in range(3 if bars.tiny else 7):
        bars.take("pieces: link, GB/s", link)
        bars.take("pieces, GB/s", lambda: len(target) / seconds(read) / 1e9)
    share = bars.median("pieces, GB/s") / max(bars.samples["pieces: link, GB/s"])
    bars.check("pieces", "share of the link, 100,000 × 64 KiB of 1,000 files", share, ">= 0.85")
    for path in paths:
        path.unlink()


ALL: dict[str, Callable[[Bars], None]] = {
    "calls": calls,
    "requests": requests,
    "pieces": pieces,
    "tensor": tensor,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python python/bars", description=__doc__)
    parser.add_argument("--only", action="append", choices=ALL, help="only this bar")
    parser.add_argument("--device", default="cuda:0", help="`cuda:0`, or `cpu` to try it out")
    parser.add_argument("--scratch", type=Path, required=True, help="a folder for files")
    parser.add_argument("--out", type=Path, help="a folder for the samples and the summary")
    parser.add_argument("--tiny", action="store_true", help="little data: only whether it runs")
    given = parser.parse_args()
    given.scratch.mkdir(parents=True, exist_ok=True)
    bars = Bars(given.scratch, given.device, given.tiny)
    for name in given.only or ALL:
        try:
            ALL[name](bars)
        except ImportError as error:
            print(f"skipped: {name}: {error}", flush=True)
    if given.out:
        write(bars, given.out)
    return 0 if given.tiny or all(result["passed"] for result in bars.results) else 1


def write(bars: Bars, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    versions = {
        name: getattr(sys.modules.get(name), "__version__", None) for name in ["torch", "numpy"]
    }
    gpu = None if bars.device == "cpu" else forebay.default_engine().gpu(bars.device)
    environment = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": {key: gpu[key] for key in ["name", "driver", "memory"]} if gpu else None,
        "versions": versions,
        "commit": os.environ.get("FOREBAY_COMMIT", "unknown"),
    }
    (folder / "environment.json").write_text(json.dumps(environment, indent=1) + "\n")
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(v)}" for key, v in bars.samples.items())
    (folder / "samples.json").write_text("{\n" + lines + "\n}\n")
    table = ["| bar | what | measured | must be | verdict |", "|---|---|---|---|---|"]
    for result in bars.results:
        verdict = "pass" if result["passed"] else "fail"
        value = f"{result['measured']:.4f}"
        what = f"| {result['bar']} | {result['what']} | {value} "
        table.append(f"{what}| {result['must_be']} | {verdict} |")
    table += ["", "| what | median | min | max | samples |", "|---|---|---|---|---|"]
    for key, values in bars.samples.items():
        table.append(
            f"| {key} | {statistics.median(values):.3f} | {min(values):.3f} | {max(values):.3f} "
            f"| {len(values)} |"
        )
    (folder / "summary.md").write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    sys.exit(main())
