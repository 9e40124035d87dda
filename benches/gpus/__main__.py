"""Measures the bars for GPUs: Forebay against programs by hand and the limits of the links, in one
run, in turn. A bar compares medians."""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import random
import re
import select
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import by_hand
from bars import BARS, HEAD, Judged, Samples

#: Processes and GPUs of the jobs that need two, jobs with processes of their own, and those with new
#: ones in each round.
PROCESSES, GPUS, ALONE, FRESH = {"ranks": 2}, {"ranks": 2, "own": 2}, {"own", "ranks", "loads"}, {"loads"}
JOBS = list(dict.fromkeys(bar.job for bar in BARS))


class Side:
    """The processes that measure one package."""

    def __init__(self, package: Path | None, given: dict[str, Any]) -> None:
        self._package, self._given = package, given
        self._started: list[subprocess.Popen[str]] = []
        self._for = ""

    def sample(self, job: str, limit_s: float) -> dict[str, Any]:
        """One round of a job: `found` or `failed`."""
        count = PROCESSES.get(job, 1)
        needed = job if job in ALONE else "others"
        if needed != self._for or job in FRESH or not self._started:
            self.close()
            self._for = needed
            self._start(count)
        for process in self._started:
            assert process.stdin is not None
            print(json.dumps({**self._given, "job": job, "ranks": count}), file=process.stdin, flush=True)
        answers = [self._answer(process, time.monotonic() + limit_s) for process in self._started]
        if failed := [answer for answer in answers if "failed" in answer]:
            self.close()
            return failed[0]
        return answers[0]

    def _start(self, count: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        path = [str(self._package)] if self._package else []
        path += filter(None, [os.environ.get("PYTHONPATH")])
        for rank in range(count):
            variables = {"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank),
                         "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}  # fmt: skip
            self._started.append(subprocess.Popen(
                [sys.executable, Path(__file__).parent / "work.py"],
                env={**os.environ, **(variables if count > 1 else {}), "PYTHONPATH": ":".join(path)},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            ))  # fmt: skip

    @staticmethod
    def _answer(process: subprocess.Popen[str], until: float) -> dict[str, Any]:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], max(until - time.monotonic(), 0))[0]:
            return {"failed": "took too long"}
        line = process.stdout.readline()
        found: dict[str, Any] = json.loads(line) if line else {}
        return found or {"failed": f"its process ended with {process.wait()}"}

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()
        self._started.clear()


class Results:
    """Samples, and the files that document the run. They are written anew after every job."""

    def __init__(self, folder: Path | None, environment: dict[str, Any]) -> None:
        self._folder, self._environment = folder, environment
        self._rows: list[tuple[str, str, int, float]] = []
        self._samples: Samples = defaultdict(list)
        #: Jobs without samples or without some, each with the reason.
        self.skipped: dict[str, str] = {}

    def add(self, job: str, side: str, number: int, found: dict[str, list[float]]) -> None:
        for name, values in found.items():
            name = f"before: {name}" if side == "before" else name
            self._samples[name] += values
            self._rows += [(job, name, number, value) for value in values]

    def table(self) -> str:
        lines = [self._environment["sentence"], "", HEAD]
        for bar, judged in zip(BARS, self.judged(), strict=True):
            lines.append(judged.line())
            if judged.verdict == "not measured" and bar.job in self.skipped:
                lines[-1] = f"skipped: {bar.own}: {self.skipped[bar.job]}"
        verdicts = [judged.verdict for judged in self.judged()]
        counts = [f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts)]
        return "\n".join([*lines, "", ", ".join(counts)])

    def judged(self) -> list[Judged]:
        return [bar.judged(self._samples) for bar in BARS]

    def write(self) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "table.txt").write_text(self.table() + "\n")
        (self._folder / "environment.json").write_text(json.dumps(self._environment, indent=1) + "\n")
        with open(self._folder / "samples.csv", "w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["job", "series", "round", "value"])
            rows.writerows((*row[:3], f"{row[3]:.5g}") for row in self._rows)


def main() -> int:
    """Measures the jobs. Returns 1 if one failed, or a bar was missed."""
    given = arguments()
    with tempfile.TemporaryDirectory(prefix=".forebay-gpus-", dir=given.scratch.absolute()) as folder:
        scratch, start = Path(folder), time.monotonic()
        sides = {"after": package(given.package, scratch / "after")}
        if given.before is not None:
            sides["before"] = package(given.before, scratch / "before")
        environment = described(given, sides["after"])
        results = Results(archive(given.archive, environment), environment)
        nbytes = 64 << 20 if given.tiny else given.gib << 30
        library = None if given.tiny else by_hand.build(scratch)
        job = {
            "model": str(model(scratch / "8.safetensors", nbytes, 8)),
            "many": str(model(scratch / "2738.safetensors", 2738 * (1 << 12 if given.tiny else 1 << 20), 2738)),
            "scratch": folder, "seconds": given.seconds, "tiny": given.tiny,
            "by_hand": library and str(library),
        }  # fmt: skip
        started = {name: Side(path, job) for name, path in sides.items()}
        gpus, failed, no_time = len(environment["gpus"]), False, dict[str, Any](failed="no time")
        try:
            for name in given.job or JOBS:
                need = GPUS.get(name, 1)
                if gpus < need and (name == "layers" or not given.tiny):
                    results.skipped[name] = f"{gpus} of {need} GPUs on this machine"
                    continue
                for number in range(given.rounds):
                    for side, processes in started.items():
                        rest = given.limit - (time.monotonic() - start)
                        found = processes.sample(name, rest) if rest > 0 else no_time
                        results.add(name, side, number, found.get("found", {}))
                        if "failed" in found:
                            results.skipped[name], failed = found["failed"], True
                results.write()
                print(f"{name}: {results.skipped.get(name, 'done')} "
                      f"({time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)  # fmt: skip
        finally:
            for processes in started.values():
                processes.close()
            results.write()
            print(results.table())
    missed = any(judged.verdict == "missed" for judged in results.judged())
    return int(failed or missed and not given.tiny)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benches/gpus", description=__doc__)
    add = parser.add_argument
    wheel = next(Path(__file__).parent.glob("*.whl"), None)
    add("package", type=Path, nargs="?", default=wheel, metavar="WHEEL",
        help="a wheel of Forebay, or its folder (a wheel beside this program, or what is installed)")  # fmt: skip
    add("--before", type=Path, metavar="WHEEL", help="a wheel to compare with, or its folder")
    add("--job", action="append", choices=JOBS, help="only this job; may be repeated")
    add("--rounds", type=int, default=3, metavar="N", help="rounds of each job (3)")
    add("--seconds", type=float, default=0.3, metavar="S", help="seconds of a sample of calls (0.3)")
    add("--gib", type=int, default=8, metavar="GIB", help="size of the model (8)")
    add("--limit", type=float, default=540, metavar="S", help="seconds of the whole run (540)")
    add("--scratch", type=Path, default=Path(), metavar="DIR", help="folder for test files (.)")
    add("--archive", type=Path, metavar="DIR", help="writes the run to DIR/DATE-MACHINE")
    add("--tiny", action="store_true",
        help="little data, without GPUs too: shows that the jobs run, and judges nothing")  # fmt: skip
    return parser.parse_args()


def package(wheel: Path | None, folder: Path) -> Path | None:
    """The folder of a package; a wheel is unpacked."""
    if wheel is None or wheel.is_dir():
        return wheel and wheel.absolute()
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def described(given: argparse.Namespace, after: Path | None) -> dict[str, Any]:
    """The machine, the versions and the command."""
    code = "import json, torch, sys; print(json.dumps([torch.__version__, [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]]))"
    torch, gpus = json.loads(subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)  # fmt: skip
    cores, kernel = os.cpu_count(), platform.release()
    commit = Path(__file__).with_name("commit")
    origin = commit.read_text().strip() if commit.is_file() else os.environ.get("FOREBAY_COMMIT", "unknown")
    machine = f"{len(gpus)} x {gpus[0]}" if gpus else "no GPU"
    machine = f"a tiny run, which judges nothing: {machine}" if given.tiny else machine
    return {
        "sentence": f"{machine}, {cores} cores, Linux {kernel}, torch {torch}, commit {origin}",
        "date": time.strftime("%F", time.gmtime()), "gpus": gpus, "cores": cores, "kernel": kernel,
        "python": platform.python_version(), "torch": torch, "commit": origin, "command": sys.argv,
    }  # fmt: skip


def archive(parent: Path | None, environment: dict[str, Any]) -> Path | None:
    """A new folder in `parent`; earlier runs stay as they are."""
    if parent is None:
        return None
    gpus = environment["gpus"]
    machine = f"{len(gpus)}-{gpus[0]}" if gpus else f"{environment['cores']}-cores"
    name = f"{environment['date']}-{re.sub('[^a-z0-9]+', '-', machine.lower())}"
    paths = (parent / (name if number == 1 else f"{name}-{number}") for number in range(1, 1000))
    return next(path for path in paths if not path.exists())


def model(path: Path, nbytes: int, tensors: int) -> Path:
    """A safetensors file of `tensors` equal tensors of bytes that differ from place to place."""
    each = nbytes // tensors
    header = json.dumps({
        f"tensor.{number:05}": {"dtype": "U8", "shape": [each], "data_offsets": [number * each, (number + 1) * each]}
        for number in range(tensors)
    }).encode()  # fmt: skip
    header += b" " * (-(len(header) + 8) % 4096)
    block = memoryview(random.Random(1).randbytes(16 << 20))
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for offset in range(0, each * tensors, 12 << 20):
            start = offset // (12 << 20) * 4099 % (4 << 20)
            file.write(block[start : start + min(each * tensors - offset, 12 << 20)])
        file.flush()
        os.fsync(file.fileno())
    return path


if __name__ == "__main__":
    sys.exit(main())
