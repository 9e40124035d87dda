"""One turn: a process of its own, in which one side loads the file a few times.

``python -m forebay.bench_peers.turn`` reads a job and prints one line of JSON, whatever the library
prints.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from . import cache, checks, machine, memory
from .model import Model, opened
from .sides import Loaded, Side, named
from .sides.side import is_there, torch


def main() -> None:
    """Does what the job says that comes on the standard input."""
    # What a library prints goes where its errors go.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job: dict[str, Any] = json.load(sys.stdin)
    try:
        answer = _JOBS[job["do"]](job)
    except Exception as error:
        kind = type(error).__name__
        answer = {"failed": f"{kind}: {error}".strip().splitlines()[0][:300]}
        traceback.print_exc()
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
    # Some libraries hang or crash when the interpreter ends; what they did has been told.
    sys.stderr.flush()
    os._exit(1 if "failed" in answer else 0)


def _describe(job: dict[str, Any]) -> dict[str, Any]:
    return machine.described(job["device"], Path(job["path"]))


def _sums(job: dict[str, Any]) -> dict[str, Any]:
    return {"sums": checks.sums_of_file(opened(Path(job["path"])))}


def _touch(job: dict[str, Any]) -> dict[str, Any]:
    machine.touch_memory(job["nbytes"])
    return {}


def _prepare(job: dict[str, Any]) -> dict[str, Any]:
    side = named(job["side"], job["setting"])
    begin = time.perf_counter()
    path = side.prepare(opened(Path(job["path"])), Path(job["folder"]))
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    return {"path": str(path), "seconds": time.perf_counter() - begin}


def _measure(job: dict[str, Any]) -> dict[str, Any]:
    """First load and further ones, then one that is watched and not timed."""
    side, device, state = named(job["side"], job["setting"]), job["device"], job["state"]
    model, path = opened(Path(job["path"])), Path(job["prepared"])
    begin = time.perf_counter()
    if is_there("torch"):
        torch()
    side.start(model, device)
    started_s = time.perf_counter() - begin
    _wait_for(device)  # which also makes CUDA's context, that every process needs
    gc.collect()
    host, on_gpu = memory.resident(), memory.used_on_gpu(device)
    loads, host_most, extra_on_gpu = [], 0, 0
    for number in range(job["loads"]):
        share = cache.make(path, state)
        memory.forget_peak()
        load, loaded = _timed(side, model, path, device)
        host_most = max(host_most, memory.resident_most())
        if number == 0:
            extra_on_gpu = memory.used_on_gpu(device) - on_gpu - _kept(loaded, device)
        if loaded.tensors and (reason := checks.wrong(model, loaded, job["sums"])):
            raise RuntimeError(f"load {number + 1}: {reason}")
        loads.append({"resident": share, **load})
        del loaded
        gc.collect()
    cache.make(path, state)
    with memory.Watch(device) as watch:
        loaded = side.load(model, path, device)
        _wait_for(device)
    kept = _kept(loaded, device)
    del loaded
    on_host = model.nbytes if device == "cpu" and side.name not in ("link", "drive") else 0
    cache.make(path, state)
    return {
        "loads": loads,
        "start_s": started_s,
        "host_peak": max(host_most - host - on_host, 0),
        "gpu_extra": max(extra_on_gpu, 0),
        "gpu_extra_peak": max(watch.on_gpu - on_gpu - kept, 0),
        "told": side.tell(model, path, device),
    }


def _kept(loaded: Loaded, device: str) -> int:
    """Bytes on the GPU that were asked for."""
    return loaded.nbytes if loaded.tensors and device != "cpu" else 0


def _timed(side: Side, model: Model, path: Path, device: str) -> tuple[dict[str, Any], Loaded]:
    cpu, begin = _cpu_s(), time.perf_counter()
    loaded = side.load(model, path, device)
    _wait_for(device)
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "cpu_s": _cpu_s() - cpu, "bytes": loaded.nbytes}, loaded


def _wait_for(device: str) -> None:
    """Until all work on the GPU is done."""
    if device != "cpu":
        torch().cuda.synchronize(torch().device(device))


def _cpu_s() -> float:
    """Of all threads, the kernel's own for this process with them, and of children that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


_JOBS = {
    "describe": _describe,
    "sums": _sums,
    "touch": _touch,
    "prepare": _prepare,
    "measure": _measure,
}

if __name__ == "__main__":
    main()
