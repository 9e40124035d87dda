"""Measures the bars for GPUs: Forebay against programs by hand and the limits of the links, in one
run, in turn. A bar compares medians."""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import json
import os
import platform
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

import by_hand
from bars import BARS, HEAD, Bar, Judged, Samples

JOBS = list(dict.fromkeys(bar.job for bar in BARS))
#: Jobs of one round, which is long, and those that measure a package from before too.
LONG = {job for job in JOBS if job.startswith("layers")}
COMPARED = {bar.job for bar in BARS if bar.before}
#: Processes and GPUs of the jobs that need two.
PROCESSES, GPUS = {"ranks": 2}, {"ranks": 2, "own": 2}
#: Jobs with processes of their own, which end with the round if its first call is measured.
ALONE, FRESH = {"own", "ranks", "loads"}, {"loads"}


class Side:
    """The processes that measure one package."""

    def __init__(self, package: Path | None, given: dict[str, Any]) -> None:
        self._package, self._given = package, given
        self._started: list[subprocess.Popen[str]] = []
        self._for = ""

    def sample(self, job: str, limit_s: float) -> dict[str, Any]:
        """One round of a job: `found` or `failed`."""
        if limit_s <= 0:
            return {"failed": "no time"}
        count, needed = PROCESSES.get(job, 1), job if job in ALONE else "others"
        if needed != self._for or job in FRESH or not self._started:
            self.close()
            self._for = needed
            self._start(count)
        for process in self._started:
            assert process.stdin is not None
            work = json.dumps({**self._given, "job": job, "ranks": count})
            print(work, file=process.stdin, flush=True)
        answers = [self._answer(process, time.monotonic() + limit_s) for process in self._started]
        if failed := [answer for answer in answers if "failed" in answer]:
            self.close()
            return failed[0]
        return answers[0]

    def _start(self, count: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        path = [str(self._package or ""), os.environ.get("PYTHONPATH", "")]
        variables = {**os.environ, "PYTHONPATH": ":".join(filter(None, path))}
        if count > 1:
            variables |= {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        command = [sys.executable, str(Path(__file__).with_name("work.py"))]
        for rank in range(count):
            own = {**variables, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            self._started.append(subprocess.Popen(
                command, env=own if count > 1 else variables,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
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
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self._started.clear()


class Results:
    """Samples, and the files that document the run. They are written anew after every job."""

    def __init__(self, parent: Path | None, environment: dict[str, Any], bars: list[Bar]) -> None:
        self._environment, self._bars = environment, bars
        self._rows: list[tuple[str, str, int, float]] = []
        self._samples: Samples = defaultdict(list)
        #: Jobs without samples or without some, each with the reason.
        self.skipped: dict[str, str] = {}
        self.failed = False
        gpus = environment["gpus"]
        machine = f"{len(gpus)}-{gpus[0]}" if gpus else f"{environment['cores']}-cores"
        name = f"{environment['date']}-{re.sub('[^a-z0-9]+', '-', machine.lower())}"
        names = (name if number == 1 else f"{name}-{number}" for number in range(1, 1000))
        # Earlier runs stay as they are.
        free = (parent / name for name in names if parent and not (parent / name).exists())
        self._folder = next(free, None)

    def add(self, job: str, side: str, number: int, answer: dict[str, Any]) -> None:
        if "failed" in answer:
            self.skipped[job], self.failed = answer["failed"], True
        for name, values in answer.get("found", {}).items():
            name = f"before: {name}" if side == "before" else name
            self._samples[name] += values
            self._rows += [(job, name, number, value) for value in values]

    def judged(self) -> list[Judged]:
        return [bar.judged(self._samples) for bar in self._bars]

    def table(self) -> str:
        lines = [self._environment["sentence"], "", HEAD]
        for bar, judged in zip(self._bars, self.judged(), strict=True):
            if judged.verdict != "skipped":
                lines.append(judged.line())
                continue
            missing = [name for name in (bar.own, *bar.against) if name not in self._samples]
            reason = self.skipped.get(bar.job, f"no samples of {' or '.join(missing)}")
            value = f" ({judged.value:.4g} {bar.unit})" if judged.value == judged.value else ""
            lines.append(f"skipped: {bar.own}{value}: {reason}")
        verdicts = [judged.verdict for judged in self.judged()]
        counts = [f"{verdicts.count(word)} {word}" for word in dict.fromkeys(verdicts)]
        return "\n".join([*lines, "", ", ".join(counts)])

    def write(self) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "table.txt").write_text(self.table() + "\n")
        environment = json.dumps(self._environment, indent=1)
        (self._folder / "environment.json").write_text(environment + "\n")
        with open(self._folder / "samples.csv", "w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["job", "series", "round", "value"])
            rows.writerows((*row[:3], f"{row[3]:.5g}") for row in self._rows)


def main() -> int:
    """Measures the jobs. Returns 1 if one failed, or a bar was missed."""
    given = arguments()
    chosen = [bar for bar in BARS if bar.job in given.job and (given.before or not bar.before)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # files and processes end with this one
    results = Results(given.archive, described(given), chosen)
    parent = given.scratch.absolute()
    with tempfile.TemporaryDirectory(prefix=".forebay-gpus-", dir=parent) as folder:
        measure(given, Path(folder), results)
    print(results.table())
    missed = any(judged.verdict == "missed" for judged in results.judged())
    return int(results.failed or missed and not given.tiny)


def measure(given: argparse.Namespace, scratch: Path, results: Results) -> None:
    """All rounds of the jobs, each side in turn."""
    start, gpus = time.monotonic(), len(described(given)["gpus"])
    library = None if given.tiny else by_hand.build(scratch)
    if library is None:
        print("no `nvcc`, or a tiny run: nothing is measured by hand", file=sys.stderr)
    nbytes, each = (64 << 20, 4 << 10) if given.tiny else (given.gib << 30, 1 << 20)
    job = {
        "model": str(model(scratch / "8.safetensors", nbytes, 8)),
        "many": str(model(scratch / "2738.safetensors", 2738 * each, 2738)),
        "scratch": str(scratch),
        "seconds": given.seconds,
        "tiny": given.tiny,
        "by_hand": library and str(library),
    }
    packages = {"after": given.package} | ({"before": given.before} if given.before else {})
    sides = {name: Side(package(path, scratch / name), job) for name, path in packages.items()}
    try:
        for name in given.job:
            need = GPUS.get(name, 1)
            if gpus < need and (name in LONG or not given.tiny):
                results.skipped[name] = f"{gpus} of {need} GPUs on this machine"
                continue
            compared = sides if name in COMPARED else {"after": sides["after"]}
            for number in range(1 if name in LONG else given.rounds):
                for side, processes in compared.items():
                    rest = given.limit - (time.monotonic() - start)
                    results.add(name, side, number, processes.sample(name, rest))
            results.write()
            text = f"{name}: {results.skipped.get(name, 'done')} ({time.monotonic() - start:.0f} s)"
            print(text, file=sys.stderr, flush=True)
    finally:
        for processes in sides.values():
            processes.close()
        results.write()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python benches/gpus", description=__doc__)
    add = parser.add_argument
    wheel = next(Path(__file__).parent.glob("*.whl"), None)
    add(
        "package",
        type=Path,
        nargs="?",
        default=wheel,
        metavar="WHEEL",
        help="a wheel of Forebay, or its folder (a wheel in this folder, or what is installed)",
    )
    add("--before", type=Path, metavar="WHEEL", help="a wheel to compare with, or its folder")
    add("--job", action="append", choices=JOBS, help="only this job; may be repeated")
    add("--rounds", type=int, default=3, metavar="N", help="rounds of each job (3)")
    add("--seconds", type=float, default=0.3, metavar="S", help="seconds of a sample (0.3)")
    add("--gib", type=int, default=8, metavar="GIB", help="size of the model (8)")
    add("--limit", type=float, default=540, metavar="S", help="seconds of the whole run (540)")
    add("--scratch", type=Path, default=Path(), metavar="DIR", help="folder for test files (.)")
    add("--archive", type=Path, metavar="DIR", help="writes the run to DIR/DATE-MACHINE")
    add(
        "--tiny",
        action="store_true",
        help="little data, without GPUs too: shows that the jobs run, and judges nothing",
    )
    given = parser.parse_args()
    given.job = given.job or JOBS
    return given  # fmt: skip


def package(wheel: Path | None, folder: Path) -> Path | None:
    """The folder of a package; a wheel is unpacked."""
    if wheel is None or wheel.is_dir():
        return wheel and wheel.absolute()
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def described(given: argparse.Namespace) -> dict[str, Any]:
    """The machine, the versions and the command."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        printed = subprocess.run(query, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        printed = ""
    gpus = [line.partition(",")[0] for line in printed.splitlines()]
    commit = Path(__file__).with_name("commit")
    found = {
        "date": time.strftime("%F", time.gmtime()),
        "gpus": gpus,
        "driver": printed.partition(",")[2].partition("\n")[0].strip(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
        "commit": commit.read_text().strip() if commit.is_file() else "unknown",
        "command": sys.argv,
    }
    machine = f"{len(gpus)} x {gpus[0]}, driver {found['driver']}" if gpus else "no GPU"
    tiny = "a tiny run, which judges nothing: " if given.tiny else ""
    text = "{cores} cores, Linux {kernel}, torch {torch}, commit {commit}".format(**found)
    return {"sentence": f"{tiny}{machine}, {text}", **found}


def model(path: Path, nbytes: int, tensors: int) -> Path:
    """A safetensors file of `tensors` equal tensors of bytes that differ from place to place."""
    each, step = nbytes // tensors, 12 << 20
    tensor = {"dtype": "U8", "shape": [each]}
    header = json.dumps({
        f"tensor.{number:05}": {**tensor, "data_offsets": [number * each, (number + 1) * each]}
        for number in range(tensors)
    }).encode()  # fmt: skip
    header += b" " * (-(len(header) + 8) % 4096)
    block = memoryview(random.Random(1).randbytes(16 << 20))
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for offset in range(0, each * tensors, step):
            start = offset // step * 4099 % (4 << 20)
            file.write(block[start : start + min(each * tensors - offset, step)])
        file.flush()
        os.fsync(file.fileno())
    return path


if __name__ == "__main__":
    sys.exit(main())
