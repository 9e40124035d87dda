"""Processes that the package starts run its own code, wherever they are started."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = ["forebay/__init__", "forebay/__main__", "forebay/_command", "signal", "json", "os"]

PLANTED = """\
import sys
with open({ran!r}, "a") as file:
    file.write(__file__ + " " + " ".join(sys.argv) + "\\n")
raise SystemExit(3)
"""

READS_TO_A_GPU = """
import forebay, os, sys
engine = forebay.Engine()
assert engine.gpu(0)["name"] == "fake"
target = engine.allocate(8 << 20, 0)
with engine.open(sys.argv[1]) as file:
    file.evict()
    assert file.read_into(target) == 8 << 20
assert target.tobytes() == open(sys.argv[1], "rb").read()
"""

FIND = "import importlib.util as own; raise SystemExit(own.find_spec('forebay') is None)"
IS_INSTALLED = subprocess.run([sys.executable, "-I", "-c", FIND], check=False).returncode == 0

RUNS_THE_COMMAND = """
import forebay
assert forebay.map("/")["schema"] == 1
assert "sentence" in forebay.doctor("/", gpu="none")
"""


class Planted:
    """A folder with modules that others may have put there, and what they ran."""

    def __init__(self, tmp_path: Path) -> None:
        self.folder, self.ran = tmp_path / "planted", tmp_path / "ran"
        for name in MODULES:
            path = self.folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(PLANTED.format(ran=str(self.ran)))

    def run(self, code: str, *arguments: str, flags: list[str], **variables: str) -> None:
        app = self.folder.parent / "app.py"
        app.write_text(code)
        if "-I" in flags and not IS_INSTALLED:
            pytest.skip("the package is found by `PYTHONPATH` here, which `-I` ignores")
        done = subprocess.run(
            [sys.executable, *flags, str(app), *arguments],
            cwd=self.folder,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert not self.ran.exists(), self.ran.read_text()
        assert done.returncode == 0, done.stderr


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path)


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, made = Path(__file__).parent / "fake_cuda.c", tmp_path / "driver"
    made.mkdir()
    command = [compiler, "-shared", "-fPIC", "-w", str(source), "-o", str(made / "libcuda.so.1")]
    subprocess.run(command, check=True)
    try:
        ctypes.CDLL(str(made / "libcuda.so.1"))
    except OSError as error:
        pytest.skip(f"the compiler makes libraries for another machine: {error}")
    return made


@pytest.mark.parametrize("flags", [[], ["-I"]])
def test_the_probe_of_cufile_runs_nothing_of_the_current_folder(
    planted: Planted, driver: Path, tmp_path: Path, flags: list[str]
) -> None:
    data = tmp_path / "data"
    data.write_bytes(os.urandom(8 << 20))
    # The child's own interpreter, which notes that it was started.
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/started\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    code = f"import sys\nsys.executable = {str(python)!r}\n{READS_TO_A_GPU}"
    variables = {"LD_LIBRARY_PATH": str(driver), "CUFILE_USE_PCIP2PDMA": "true"}
    if flags:
        variables["PYTHONPATH"] = str(planted.folder)
    planted.run(code, str(data), flags=flags, **variables)
    started = (tmp_path / "started").read_text()
    assert "probe" in started, "the probe did not run, so nothing is proved"


@pytest.mark.parametrize("flags", [[], ["-I"]])
def test_commands_run_nothing_of_the_current_folder(planted: Planted, flags: list[str]) -> None:
    variables = {"PYTHONPATH": str(planted.folder)} if flags else {}
    planted.run(RUNS_THE_COMMAND, flags=flags, **variables)


def test_the_command_itself_runs_nothing_of_the_current_folder(planted: Planted) -> None:
    command = shutil.which("forebay", path=os.path.dirname(sys.executable))
    if command is None:
        pytest.skip("no `forebay` next to this Python")
    code = f"import subprocess; subprocess.run([{command!r}, 'doctor', '/', '--gpu', 'none'])"
    planted.run(code, flags=[])
