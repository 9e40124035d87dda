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
from collections.abc import Callable
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
            targets = _started(side, job)
            answer(started=True)
            while order := sys.stdin.readline().strip():
                _load(side, load, job, targets, answer, order == "watch")
    except (ImportError, Missing) as error:
        answer(missing=str(error).splitlines()[0])
    except BaseException as error:
        traceback.print_exc()
        answer(failed=f"{type(error).__name__}: {error}".splitlines()[0][:300])
    sys.stderr.flush()
    os._exit(0)  # some libraries hang when the interpreter ends


def _started(side: Side, job: Job) -> dict[str, Any]:
    """Makes the context on the GPU, which every loader needs. Returns the memory for copies."""
    import torch

    if job.device != "cpu":
        torch.cuda.set_device(job.device)
        torch.empty(1, device=job.device)
        torch.cuda.synchronize(job.device)
    if side.use is not Use.COPY:
        return {}
    expected = _expected(side, job).items()
    return {name: torch.empty_like(one, device=job.device) for name, one in expected}


def _expected(side: Side, job: Job) -> dict[str, Any]:
    rank, ranks = (job.rank, job.ranks) if side.shares else (0, 1)
    return model.shares(job.paths, rank, ranks)


def _load(
    side: Side,
    load: Load,
    job: Job,
    targets: dict[str, Any],
    answer: Callable[..., None],
    watched: bool,
) -> None:
    """One load, at the word of the parent; if it is watched, also the check of all bytes."""
    gc.collect()
    if watched and job.device != "cpu":
        import torch

        torch.cuda.empty_cache()
    gpu, host, io, cpu = _gpu(job.device), _peak("VmRSS"), _io(), _cpu_s()
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak of resident memory begins anew
    answer(ready=True)
    sys.stdin.readline()
    with Watch(job.device if watched else "cpu") as watch:
        begin = time.monotonic()
        with load() as pairs:
            kept = _used(side, pairs, job, targets)
            if job.device != "cpu":
                import torch

                torch.cuda.synchronize(job.device)
            end, cpu, io = time.monotonic(), _cpu_s() - cpu, _io(since=io)
            nbytes = sum(tensor.nbytes for tensor in kept.values())
            on_host = nbytes if job.device == "cpu" else 0
            new = 0 if targets else nbytes - on_host
            answer(
                begin=begin, end=end, cpu_s=cpu, bytes=nbytes, **io,
                host=max(_peak("VmHWM") - host - on_host, 0),
                gpu=max(watch.most - gpu - new, 0) if watched else None,
            )  # fmt: skip
            if watched and sys.stdin.readline() and not side.raw:
                model.check(_expected(side, job), kept.items() or pairs)
    if watched:
        answer(checked=True)


def _used(side: Side, pairs: Any, job: Job, targets: dict[str, Any]) -> dict[str, Any]:
    """Uses the tensors, and returns them. On the host each byte is summed: some loaders only map
    their files."""
    if side.use is Use.WRITE:
        return {}
    kept = {}
    for name, tensor in pairs:
        if (target := targets.get(name)) is not None:
            if tensor.shape != target.shape:
                tensor = tensor.chunk(job.ranks)[job.rank]
            tensor = target.copy_(tensor)
        elif job.device == "cpu" and not side.raw:
            _sum(tensor)
        kept[name] = tensor
    return kept


def _sum(tensor: Any) -> None:
    import torch

    flat = tensor.reshape(-1).view(torch.uint8)
    whole = len(flat) // 8 * 8
    aligned = flat.data_ptr() % 8 == 0
    (flat[:whole].view(torch.int64) if aligned else flat).sum()


class Watch(threading.Thread):
    """Samples how much memory of a GPU is in use, and keeps the maximum."""

    def __init__(self, device: str) -> None:
        super().__init__(daemon=True)
        self._device, self._end = device, threading.Event()
        self.most = 0

    def __enter__(self) -> Watch:
        if self._device != "cpu":
            self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()

    def run(self) -> None:
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
