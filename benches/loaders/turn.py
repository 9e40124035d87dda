"""One process that loads a model a few times. It reads a job and writes lines of JSON."""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import threading
import time
import traceback
from contextlib import suppress
from typing import Any, NoReturn

import model
from cases import CASES, Side, Use
from loaders import Job, Load, Missing

SAMPLE_S = 0.005


def main() -> NoReturn:
    """Does the job on stdin. What libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**line: Any) -> None:
        print(json.dumps(line), file=answers, flush=True)

    try:
        given = json.loads(sys.stdin.readline())
        side = next(side for side in CASES[given["case"]].sides if side.name == given["loader"])
        job = Job(**given["job"])
        if given.get("prepare"):
            assert side.prepare is not None
            side.prepare(job)
            answer(done=True)
        else:
            load = side.load(job)
            _start(job.device)
            for _ in range(given["loads"]):
                answer(ready=True)
                sys.stdin.readline()
                answer(**_load(side, load, job, given["watched"]))
    except (ImportError, Missing) as error:
        answer(missing=str(error).splitlines()[0])
    except BaseException as error:
        traceback.print_exc()
        answer(failed=f"{type(error).__name__}: {error}".splitlines()[0][:300])
    sys.stderr.flush()
    os._exit(0)  # some libraries hang when the interpreter ends


def _start(device: str) -> None:
    """Imports torch and makes the context on the GPU, which every loader needs."""
    import torch

    if device != "cpu":
        torch.cuda.set_device(device)
        torch.empty(1, device=device)
        torch.cuda.synchronize(device)


def _load(side: Side, load: Load, job: Job, watched: bool) -> dict[str, Any]:
    gc.collect()
    gpu, host, io, cpu = _gpu(job.device), _peak("VmRSS"), _io(), _cpu_s()
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak of resident memory begins anew
    with Watch(job.device if watched else "cpu") as watch:
        begin = time.monotonic()
        with load() as pairs:
            kept = _used(side, pairs, job.device)
            if job.device != "cpu":
                import torch

                torch.cuda.synchronize(job.device)
            end, cpu, io = time.monotonic(), _cpu_s() - cpu, _io(since=io)
            nbytes = sum(tensor.nbytes for tensor in kept.values())
            on_host = nbytes if job.device == "cpu" else 0
            found = {
                "begin": begin, "end": end, "cpu_s": cpu, "bytes": nbytes, **io,
                "host": max(_peak("VmHWM") - host - on_host, 0),
            }  # fmt: skip
            if watched:
                found["gpu"] = max(watch.most - gpu - nbytes + on_host, 0)
                if side.use is not Use.DROP and not side.raw:
                    _check(side, kept.items() or pairs, job)
    if watched and side.use is Use.DROP:
        with load() as pairs:
            _check(side, pairs, job)
    return found


def _used(side: Side, pairs: Any, device: str) -> dict[str, Any]:
    """Uses the tensors, and returns those to keep. On the host each byte is summed: some loaders
    only map their files."""
    if side.use is Use.WRITE:
        return {}
    kept = {}
    for name, tensor in pairs:
        if device == "cpu" and not side.raw:
            _sum(tensor)
        if side.use is Use.KEEP:
            kept[name] = tensor
    return kept


def _sum(tensor: Any) -> None:
    import torch

    flat = tensor.reshape(-1).view(torch.uint8)
    whole = len(flat) // 8 * 8
    aligned = flat.data_ptr() % 8 == 0
    (flat[:whole].view(torch.int64) if aligned else flat).sum()


def _check(side: Side, pairs: Any, job: Job) -> None:
    rank, ranks = (job.rank, job.ranks) if side.shares else (0, 1)
    model.check(job.paths, pairs, rank, ranks)


class Watch:
    """Samples on a thread how much memory of a GPU is in use, and keeps the maximum."""

    def __init__(self, device: str) -> None:
        self._device, self._end = device, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.most = 0

    def __enter__(self) -> Watch:
        if self._device != "cpu":
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()

    def _run(self) -> None:
        while not self._end.wait(SAMPLE_S):
            self.most = max(self.most, _gpu(self._device))


def _gpu(device: str) -> int:
    """Bytes of GPU memory in use, by all processes."""
    if device == "cpu":
        return 0
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return int(total - free)


def _peak(field: str) -> int:
    """Resident memory in bytes, now (`VmRSS`) or at its peak (`VmHWM`)."""
    with open("/proc/self/status") as file:
        found = next(line for line in file if line.startswith(field))
    return int(found.split()[1]) * 1024


def _io(since: dict[str, int] | None = None) -> dict[str, int]:
    """Bytes read by calls, and bytes read from drives, of all threads."""
    with open("/proc/self/io") as file:
        fields = dict(line.split(": ") for line in file)
    found = {name: int(fields[name]) for name in ("rchar", "read_bytes")}
    return {name: count - (since or {}).get(name, 0) for name, count in found.items()}


def _cpu_s() -> float:
    """CPU seconds of all threads and of ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
