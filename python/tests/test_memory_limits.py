"""Loads and saves in control groups and under `RLIMIT_AS`: they fit, or are refused with numbers."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from forebay.safetensors import save_file

numpy = pytest.importorskip("numpy")

MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """320 MiB in 20 tensors."""
    path = tmp_path_factory.mktemp("limits") / "model.safetensors"
    save_file({f"t{n:02}": numpy.full(16 * MIB, n, "uint8") for n in range(20)}, path)
    return path


@pytest.fixture
def group() -> Iterator[tuple[Path, str]]:
    """A control group, and the file of its limit."""
    if os.geteuid() != 0:
        pytest.skip("not root, who alone makes control groups")
    first = Path("/sys/fs/cgroup/memory")
    root, limit = (first, "memory.limit_in_bytes") if first.is_dir() else (first.parent, "memory.max")
    made = root / f"forebay-{uuid.uuid4().hex}"
    try:
        made.mkdir()
        (made / limit).write_text(str(1 << 40))
    except OSError as error:
        pytest.skip(f"no control group for memory: {error}")
    yield made, limit
    made.rmdir()


LOADS = {
    "load_file": "load_file(path, framework='numpy')",
    "iterate": "iterate(path, framework='numpy', window='256MiB')",
    "iterate, copied": "iterate(path, framework='numpy', window='256MiB', copy=True)",
    "safe_open": "((n, f.get_tensor(n)) for f in [safe_open(path, 'numpy')] for n in f.keys())",
    "safe_open, pread": "((n, f.get_tensor(n)) for f in [safe_open(path, 'numpy', backend='pread')]"
    " for n in f.keys())",
    "ranks": "iterate(path, framework='numpy', rank=0, world_size=2, window='256MiB')",
}
CODE = """
import sys
from forebay.safetensors import *
path = sys.argv[1]
found = {}
found = found.items() if isinstance(found, dict) else found
total = 0
for name, array in found:
    total += int(array[0]) + int(array[-1])
    del array
print(total)
"""


def run(code: str, path: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    shell = ["sh", "-c", f'{before} exec "$0" "$@"', sys.executable, "-c", code, str(path)]
    return subprocess.run(shell, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", LOADS)
def test_a_load_fits_into_a_control_group(
    model: Path, group: tuple[Path, str], name: str
) -> None:
    folder, limit = group
    (folder / limit).write_text(str(200 * MIB))
    code = CODE.replace("found = {}", f"found = {LOADS[name]}", 1)
    done = run(code, model, f"echo $$ > {folder}/cgroup.procs;")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 2 * sum(range(20))


REFUSED = {
    "copied": "load_file(path, framework='numpy', copy=True)",
    "converted": "load_file(path, framework='numpy', dtype='float16')",
    "ranks": "load_file(path, framework='numpy', rank=0, world_size=2)",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_does_not_fit_is_refused_with_numbers(
    tmp_path: Path, model: Path, group: tuple[Path, str], name: str
) -> None:
    folder, limit = group
    path = model
    if name == "converted":
        path = tmp_path / "model.safetensors"
        save_file({f"t{n}": numpy.zeros(20 * MIB, "float32") for n in range(4)}, path)
    (folder / limit).write_text(str(200 * MIB))
    done = run(f"import sys\nfrom forebay.safetensors import *\npath = sys.argv[1]\n{REFUSED[name]}",
               path, f"echo $$ > {folder}/cgroup.procs;")
    assert done.returncode == 1 and "OutOfMemory" in done.stderr, done.stderr
    assert "MiB of memory" in done.stderr and str(folder) in done.stderr


def test_a_limit_of_addresses_is_named(model: Path) -> None:
    code = """
import resource, sys
import forebay
from forebay.safetensors import *
safe_open(sys.argv[1], "numpy")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20),) * 2)
for copy in (False, True):
    try:
        load_file(sys.argv[1], framework="numpy", copy=copy)
    except forebay.OutOfMemory as error:
        assert "RLIMIT_AS" in str(error) or "address" in str(error), error
        print("refused")
    except forebay.Error as error:
        assert error.errno == 12 and "ulimit -v" in str(error), error
        print("refused")
"""
    done = run(code, model)
    assert done.returncode == 0 and done.stdout == "refused\n" * 2, done.stderr + done.stdout
