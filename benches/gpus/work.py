"""One process that measures one package. It reads the names of jobs, and writes their samples as
lines of JSON.

A job samples its series once or a few times: Forebay and the program by hand. Rates are in GB/s,
calls in thousands per second.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NoReturn

from bars import CELLS, LAYERS, METHODS, PIECE, SIZES, TOKENS, cell, shown
from by_hand import ByHand

Found = dict[str, list[float]]

#: Pieces of one call of `read_many`, and calls or starts in flight of a thread.
BATCH = 32
#: Engines count each other's links for 0.7 s after their last transfer, and share the readers.
SHARED_S = 1.0


class Lab:
    """The file, memory and references of this process."""

    def __init__(self, given: dict[str, Any]) -> None:
        import forebay
        import torch

        self.model, self.many = Path(given["model"]), Path(given["many"])
        self.scratch, self.seconds = Path(given["scratch"]), float(given["seconds"])
        self.tiny, self.ranks = bool(given["tiny"]), int(given["ranks"])
        self.rank = int(os.environ.get("RANK", 0))
        self.gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        self.devices = self.gpus or ["cpu", "cpu"]
        self.hand = ByHand(Path(given["by_hand"])) if given["by_hand"] and self.gpus else None
        self.file = forebay.open(self.model)
        self.half = self.model.stat().st_size // 2 // PIECE * PIECE
        #: Devices whose work a sample waits for. Others have no context in this process.
        self.used = [self.device]
        if self.ranks > 1:
            self._join()

    def _join(self) -> None:
        import torch

        if self.gpus:
            torch.cuda.set_device(self.rank)
        torch.distributed.init_process_group("nccl" if self.gpus else "gloo")
        self.together()

    def together(self) -> None:
        """Waits for the devices in use and for all ranks."""
        import torch

        for device in self.used if self.gpus else ():
            torch.cuda.synchronize(device)
        if self.ranks > 1:
            ones = torch.ones(1, device=self.device)
            torch.distributed.all_reduce(ones)
            ones.item()

    @property
    def device(self) -> str:
        return self.devices[self.rank]

    def empty(self, device: str, nbytes: int) -> Any:
        import torch

        return torch.empty(nbytes, dtype=torch.uint8, device=device)

    @cached_property
    def expected(self) -> Any:
        """The first three quarters of the file on the first device, by plain calls."""
        import numpy as np
        import torch

        held = np.fromfile(self.model, np.uint8, self.half * 3 // 2 // PIECE * PIECE)
        return torch.from_numpy(held).to(self.device)

    @cached_property
    def target(self) -> Any:
        """Memory of the same length on the same device, which holds other bytes."""
        return self.empty(self.device, self.expected.numel()).fill_(0x5A)

    def check(self, ours: Any, offset: int = 0) -> None:
        """Fails unless `ours` are the bytes of the file at `offset`."""
        theirs = self.expected[offset : offset + ours.numel()].to(ours.device)
        if not bool((ours[: theirs.numel()] == theirs).all()):
            raise ValueError(f"wrong bytes of the file at {offset}")

    def check_first(self, tensors: dict[str, Any]) -> None:
        """Checks the first tensor of the model, behind the header."""
        sizes = sum(tensor.numel() for tensor in tensors.values())
        self.check(tensors[min(tensors)], self.model.stat().st_size - sizes)

    def links(self, gpus: int = 1) -> Found:
        if self.hand is None or len(self.gpus) < gpus:
            return {}
        return {"link" if gpus == 1 else f"{gpus} links": [self.hand.links(gpus)]}

    @contextmanager
    def timed(self, samples: list[float], nbytes: int) -> Iterator[None]:
        """Adds the rate of a block of all ranks."""
        self.together()
        start = time.perf_counter()
        yield
        self.together()
        samples.append(nbytes / (time.perf_counter() - start) / 1e9)

    def bench(self, path: Path, *words: object) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Points and measurements of `forebay bench`, in a process of its own."""
        command = [sys.executable, "-m", "forebay", "bench", path, "--repeats", 1, "--quiet"]
        time_ms = max(self.seconds * 1e3, 100)  # shorter ones are refused
        words = "--time", f"{time_ms:.0f}ms", "--format", "json", *words
        printed = run([*command, *words], self.scratch)
        records = map(json.loads, printed.splitlines())
        samples = [record for record in records if record["record"] == "sample"]
        if failed := [one["error"] for one in samples if one["error"]]:
            raise ValueError(failed[0])
        return [(one["point"], one["measured"]) for one in samples]

    @property
    def gpu(self) -> str:
        return "0" if self.gpus else "sim"


def run(command: list[object], folder: Path) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise ValueError(f"{done.stderr.strip()[-500:]}: `{' '.join(map(str, command))}`")
    return done.stdout


def small(lab: Lab) -> Found:
    """Random reads of resident bytes by the engine, then by each method by hand."""
    found: Found = {}
    sizes = ",".join(map(str, SIZES))
    for threads in sorted({threads for threads, _ in CELLS}):
        depths = ",".join(str(depth) for count, depth in CELLS if count == threads)
        words = ["--gpu", lab.gpu, "--cache", "warm", "--pattern", "random", "--threads", threads]
        for point, measured in lab.bench(
            lab.model, *words, "--depth", depths, "--block-size", sizes
        ):
            name = cell(threads, point["depth"], point["request_size"])
            found[f"{name}: forebay"] = [measured["bytes_per_second"] / 1e9]
            found[f"{name}: forebay, p99"] = [measured["latency"]["p99_ns"] / 1e6]
            found[f"{name}: forebay, CPU"] = [measured["cpu"]["s_per_gb"]]
    if lab.hand is not None:
        target, nbytes = lab.target.data_ptr(), lab.target.numel()
        for threads, depth in CELLS:
            for size in SIZES:
                for method in METHODS:
                    values = lab.hand.small(
                        lab.model, target, nbytes, size, threads, depth, method, lab.seconds
                    )
                    name = f"{cell(threads, depth, size)}: {method}"
                    names = (name, f"{name}, p99", f"{name}, CPU")
                    found |= {key: [value] for key, value in zip(names, values, strict=True)}
    return found | lab.links()


def large(lab: Lab) -> Found:
    """Large reads: half of the file, 256 MiB, an engine's first, and 16 concurrent ones."""
    import forebay

    found: Found = {}
    few = min(256 << 20, lab.half)
    for name, nbytes in (("half of the file", lab.half), ("256 MiB", few)):
        part, samples = lab.target[:nbytes], found.setdefault(f"read_into, {name}", [])
        lab.file.read_into(part)
        lab.check(part)
        for _ in range(3):
            with lab.timed(samples, nbytes):
                lab.file.read_into(part)
    first = found.setdefault("read_into, first of an engine", [])
    for _ in range(2):
        part = lab.target[: lab.half].fill_(0x5A)
        time.sleep(SHARED_S)
        file = forebay.Engine().open(lab.model)
        with lab.timed(first, lab.half):
            file.read_into(part)
        lab.check(part)
    each = lab.half // 64

    def reader(number: int) -> Callable[[], object]:
        part, offset = lab.target[number * each : (number + 1) * each], number * each
        return lambda: lab.file.read_into(part, offset)

    time.sleep(SHARED_S)
    found["16 large reads at once"] = [rate(lab, 16, reader) * 1e3 * each / 1e9]
    return found | lab.links()


def during(lab: Lab) -> Found:
    """How much longer reads of 64 KiB take during a large read, and that read; ms, GB/s."""
    import forebay

    found: Found = {}
    part, whole = lab.target[:PIECE], lab.target[PIECE : PIECE + lab.half]

    def p99(ended: Callable[[], bool]) -> float:
        took: list[float] = []
        while not took or not ended():
            start = time.perf_counter()
            lab.file.read_into(part, lab.half + len(took) * 4099 % lab.half // PIECE * PIECE)
            took.append(time.perf_counter() - start)
            time.sleep(1e-4)  # without it they would be load
        return sorted(took)[len(took) * 99 // 100] * 1e3

    def read() -> None:
        with lab.timed(found.setdefault("large read during small ones", []), lab.half):
            lab.file.read_into(whole)

    lab.file.read_into(whole)
    until = time.perf_counter() + lab.seconds
    alone = p99(lambda: time.perf_counter() > until)
    more = found.setdefault("64 KiB during a large read, p99 more", [])
    for _ in range(3):
        thread = threading.Thread(target=read)
        thread.start()
        time.sleep(5e-3)
        more.append(p99(lambda thread=thread: not thread.is_alive()) - alone)  # type: ignore[misc]
        thread.join()
    if link := lab.links():
        slot = forebay.default_engine().options()["slot_size"]
        found |= link | {"copy of a slot": [slot / link["link"][0] / 1e6]}
    return found


def many(lab: Lab) -> Found:
    """`read_many` of scattered pieces to scattered places, in one call."""
    import forebay
    import numpy as np
    import torch

    found, engine, random = lab.links(), forebay.default_engine(), np.random.default_rng(1)
    for size, count in ((65536, 98304), (16384, 393216), (4096, 400000)):
        places = lab.target.numel() // size
        count = min(count, places)
        offsets, at = (random.permutation(places)[:count] * size for _ in range(2))
        lengths, samples = np.full(count, size), found.setdefault(f"read_many, {shown(size)}", [])
        for number in range(4):
            with lab.timed(samples, count * size):
                engine.read_many(
                    files=lab.file, offsets=offsets, lengths=lengths, target=lab.target, at=at
                )
            if number == 0:  # the first is not counted, but compared
                samples.clear()
                rows = [lab.target.view(-1)[: places * size].view(places, size),
                        lab.expected[: places * size].view(places, size)]  # fmt: skip
                for some in np.array_split(np.arange(count), 64):
                    to, from_ = (torch.from_numpy(where[some] // size).to(lab.device)
                                 for where in (at, offsets))  # fmt: skip
                    if not torch.equal(rows[0][to], rows[1][from_]):
                        raise ValueError(f"wrong bytes of pieces of {shown(size)}")
    return found


def rate(lab: Lab, threads: int, make: Callable[[int], Callable[[], object]]) -> float:
    """Calls in thousands a second of threads that each call what `make` returns for it."""
    calls, ended, failed = [0] * threads, threading.Event(), []

    def work(number: int) -> None:
        try:
            call = make(number)
            while not ended.is_set():
                call()
                calls[number] += 1
        except Exception as error:
            failed.append(error)

    started = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    time.sleep(0.1)
    before, start = sum(calls), time.perf_counter()
    time.sleep(lab.seconds)
    found = (sum(calls) - before) / (time.perf_counter() - start) / 1e3
    ended.set()
    for thread in started:
        thread.join()
    if failed:
        raise failed[0]
    return found


def python(lab: Lab) -> Found:
    """Calls of 64 KiB from Python, each thread to a tensor at a fixed place."""
    import forebay
    import numpy as np

    found: Found = {}
    engine, opened = forebay.default_engine(), os.open(lab.model, os.O_RDONLY)

    def place(number: int) -> tuple[Any, int]:
        return lab.target[number * PIECE : (number + 1) * PIECE], number * PIECE

    def blocking(number: int) -> Callable[[], object]:
        tensor, offset = place(number)
        return lambda: lab.file.read_into(tensor, offset)

    def by_hand(number: int) -> Callable[[], object]:
        assert lab.hand is not None
        tensor, offset = place(number)
        return lab.hand.reader(opened, offset, PIECE, tensor.data_ptr())

    def started(number: int) -> Callable[[], object]:
        places = [place(number * BATCH + index) for index in range(BATCH)]
        flying = [lab.file.start_read_into(tensor, offset) for tensor, offset in places]
        turn = 0

        def call() -> None:
            nonlocal turn
            flying[turn].result()
            tensor, offset = places[turn]
            flying[turn] = lab.file.start_read_into(tensor, offset)
            turn = (turn + 1) % BATCH

        return call

    def batch(number: int) -> Callable[[], object]:
        at = (np.arange(BATCH, dtype=np.int64) + number * BATCH) * PIECE
        lengths = np.full(BATCH, PIECE)
        return lambda: engine.read_many(
            files=lab.file, offsets=at, lengths=lengths, target=lab.target, at=at
        )

    lab.target.fill_(0x5A)
    for threads in (1, 4, 16):
        found[f"read_into x {threads}"] = [rate(lab, threads, blocking)]
        if lab.hand is not None:
            found[f"by hand x {threads}"] = [rate(lab, threads, by_hand)]
    lab.check(lab.target[: 16 * PIECE])
    for threads in (1, 16):
        found[f"start_read_into x {threads}"] = [rate(lab, threads, started)]
        found[f"read_many of {BATCH} x {threads}"] = [BATCH * rate(lab, threads, batch)]
    found["asyncio"] = [asyncio.run(awaited(lab))]
    lab.check(lab.target[: 512 * PIECE])
    os.close(opened)
    return found


async def awaited(lab: Lab) -> float:
    """Awaits in thousands a second of one loop with 512 reads in flight."""
    ended, count = False, 0

    async def work(number: int) -> None:
        nonlocal count
        tensor, offset = lab.target[number * PIECE : (number + 1) * PIECE], number * PIECE
        while not ended:
            await lab.file.start_read_into(tensor, offset)
            count += 1

    works = [asyncio.ensure_future(work(number)) for number in range(512)]
    await asyncio.sleep(0.1)
    before, start = count, time.perf_counter()
    await asyncio.sleep(lab.seconds)
    found = (count - before) / (time.perf_counter() - start) / 1e3
    ended = True
    await asyncio.gather(*works)
    return found


def busy(lab: Lab) -> Found:
    """The 99th percentile of starts of a read next to a thread that runs Python, in ms."""
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            pass

    thread, took, part = threading.Thread(target=work), [], lab.target[:PIECE]
    lab.file.start_read_into(part).result()
    thread.start()
    for number in range(20 if lab.tiny else 300):
        start = time.perf_counter()
        transfer = lab.file.start_read_into(part, number * PIECE % lab.half)
        took.append(time.perf_counter() - start)
        transfer.result()
    ended.set()
    thread.join()
    return {"start next to a busy thread, p99": [sorted(took)[len(took) * 99 // 100] * 1e3]}


def loads(lab: Lab) -> Found:
    """The first load of a process and further ones, of 8 and of 2,738 tensors."""
    from forebay.safetensors import load_file

    found: Found = {}
    for name, path, times in (("8 tensors", lab.model, 5), ("2,738 tensors", lab.many, 4)):
        samples = found.setdefault(f"load, {name}", [])
        for _ in range(times):
            with lab.timed(samples, path.stat().st_size):
                loaded = load_file(path, device=lab.device)
            del loaded
        found[f"load, {name}, first"] = [samples.pop(0)]
    lab.check_first(load_file(lab.model, device=lab.device))
    return found | lab.links()


def cold(lab: Lab) -> Found:
    """Reads of cold bytes to the host, by the engine and by a ring, and to the GPU."""
    found: Found = {}
    host, gpu = ["--gpu", "none", "--method"], ["--gpu", lab.gpu]
    for words in (
        ["random", "--block-size", "4K,64K", "--depth", "1,8,32", *host, "forebay,io-uring"],
        ["random", "--block-size", "64K", "--depth", "32", *gpu],
        ["sequential", "--block-size", "1M", "--depth", "32", *host, "io-uring"],
        ["sequential", "--block-size", "1M", "--depth", "32", *gpu],
    ):
        for point, measured in lab.bench(lab.many, "--cache", "cold", "--pattern", *words):
            name = f"cold, {shown(point['request_size'])} x {point['depth']}"
            where = "" if point["targets"] == ["host"] else ", to the GPU"
            found[f"{name}: {point['method']}{where}"] = [measured["bytes_per_second"] / 1e9]
    return found


def layers(lab: Lab, megabytes: int) -> Found:
    """Passes of layers from the page cache over their line: `python benches/layers`."""
    size = 1 if lab.tiny else megabytes
    command: list[object] = [
        sys.executable, Path(__file__).parents[1] / "layers", "--ways", "forebay", "--layer-mb", size,
        "--tokens", ",".join(map(str, TOKENS)), "--rounds", 3, "--out", lab.scratch,
        "--file", lab.scratch / f"layers-{megabytes}.bin",
    ]  # fmt: skip
    run(command, lab.scratch)
    return {
        f"layers of {megabytes:,} MB, {point['tokens']:,} tokens":
            [point["ways"]["forebay"]["over_line"]]
        for point in json.loads((lab.scratch / "layers.json").read_text())["points"]
    }  # fmt: skip


def own(lab: Lab) -> Found:
    """One process, two GPUs: own bytes of each, in all; and the same bytes to both, the rate of
    each."""
    from forebay.safetensors import load_file

    found: Found = {"one process, own bytes": [], "read_into of two": [], "load_file of two": []}
    devices = lab.used = lab.devices[:2]
    targets = [lab.empty(device, lab.half) for device in devices]
    for _ in range(6):
        with lab.timed(found["one process, own bytes"], 2 * lab.half):
            for transfer in [
                lab.file.start_read_into(target, number * lab.half)
                for number, target in enumerate(targets)
            ]:
                transfer.result()
    lab.check(targets[0])
    lab.check(targets[1], lab.half)
    if lab.gpus:
        for target in targets:
            target.fill_(0x5A)
        for _ in range(4):
            with lab.timed(found["read_into of two"], lab.half):
                lab.file.read_into_all(targets, 0)
        for target in targets:
            lab.check(target)
        del targets, target
        for _ in range(4):
            with lab.timed(found["load_file of two"], lab.model.stat().st_size):
                loaded = load_file(lab.model, device=devices)
            for tensors in loaded:
                lab.check_first(tensors)
            del loaded, tensors
    for samples in found.values():
        del samples[:1]
    for point, measured in lab.bench(
        lab.model, "--together", "0-1" if lab.gpus else "sim:2", "--cache", "warm", "--pattern",
        "random", "--threads", 16, "--depth", 32, "--block-size", "64K",
    ):  # fmt: skip
        name = cell(16, 32, PIECE) + ("" if len(point["targets"]) == 1 else ", two GPUs")
        found[f"at once, {name}"] = [measured["bytes_per_second"] / 1e9]
    return found | lab.links(2)


def ranks(lab: Lab) -> Found:
    """Two processes, in all: own bytes of each, and `rank=`; and `group=`, the rate of each."""
    import torch
    from forebay.safetensors import load_file

    found: Found = {"two processes, own bytes": [], "group=": [], "rank=": []}
    target = lab.empty(lab.device, lab.half)
    for _ in range(6):
        with lab.timed(found["two processes, own bytes"], 2 * lab.half):
            lab.file.read_into(target, lab.rank * lab.half)
    lab.check(target, lab.rank * lab.half)
    del target
    size, group = lab.model.stat().st_size, torch.distributed.group.WORLD
    for name, nbytes, how in (
        ("group=", size, {"group": group}),
        ("rank=", 2 * size, {"rank": lab.rank, "world_size": 2}),
    ):
        for _ in range(4):
            with lab.timed(found[name], nbytes):
                loaded = load_file(lab.model, device=lab.device, **how)
            lab.check_first(loaded)
            del loaded
    for samples in found.values():
        del samples[:1]
    return found


JOBS: dict[str, Callable[[Lab], Found]] = {
    job.__name__: job for job in (small, large, during, many, python, busy, loads, cold, own, ranks)
}
JOBS |= {f"layers-{size}": partial(layers, megabytes=size) for size in LAYERS}


def main() -> NoReturn:
    """Does the jobs on stdin. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    lab = None
    for line in sys.stdin:
        try:
            given = json.loads(line)
            lab = lab or Lab(given)
            answer: dict[str, Any] = {"found": JOBS[given["job"]](lab)}
        except BaseException as error:
            traceback.print_exc()
            answer = {"failed": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        print(json.dumps(answer), file=answers, flush=True)
    sys.stderr.flush()
    os._exit(0)  # some libraries hang when the interpreter ends


if __name__ == "__main__":
    main()
