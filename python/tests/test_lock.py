"""How often calls give the interpreter's lock up: a release may cost 5 ms next to a busy thread."""

from __future__ import annotations

import ctypes
import json
import operator
import os
import shutil
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import forebay
import pytest
from conftest import program
from forebay import _forebay

Data = tuple[Path, bytes]

pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="this Python has no lock"
)

# Takes the place of the interpreter's own function, whose name is as long.
COUNTS = """
static long count;
void *PyEval_SaveThread(void);
void *PyEval_SaveCounts(void) { count++; return PyEval_SaveThread(); }
long releases(void) { return count; }
"""

CALLS = """
import ctypes, json, sys
counter = ctypes.PyDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
sys.path[:0] = sys.argv[3:]
import forebay
from arrays import Interface, SimArray

LEN = 64 * 1024
engine = forebay.Engine()
file = engine.open(sys.argv[2], "r+")
buffer = engine.allocate(LEN, "sim")
numbers = {"files": file, "offsets": [0], "lengths": [LEN]}
targets = {
    "buffer": buffer,
    "array": SimArray(buffer),
    "array with a stream": Interface(SimArray(buffer), stream=0),
    "address": (buffer.address, LEN, "sim:0"),
}
calls = {}
for kind, target in targets.items():
    where = {"target": target, "at": [0]}
    if kind == "address":
        where = {"addresses": [buffer.address], "device": "sim"}
    calls |= {
        f"1 read_into {kind}": lambda target=target: file.read_into(target),
        f"1 write_from {kind}": lambda target=target: file.write_from(target),
        f"1 read_many {kind}": lambda where=where: engine.read_many(**numbers, **where),
        f"1 readv {kind}": lambda target=target: file.readv([(0, LEN, target)]),
        f"0 start_read_into {kind}": lambda target=target: file.start_read_into(target),
    }
host = bytearray(LEN)
calls["0 read_into host"] = lambda: file.read_into(host)
calls["0 start_read_into host"] = lambda: file.start_read_into(host)
counts = {}
for name, call in calls.items():
    done = call()  # the first one prepares the GPU
    if name.startswith("0 start"):
        done.result()
    before = counter.releases()
    done = call()
    counts[name] = counter.releases() - before
    if name.startswith("0 start"):
        done.result()
print(json.dumps(counts))
"""


@pytest.fixture
def counting(tmp_path: Path) -> list[str]:
    """A library that counts, and a folder with a package that uses it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "counts.c", tmp_path / "counts.so"
    source.write_text(COUNTS)
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    try:
        ctypes.PyDLL(str(library))
    except OSError as error:
        pytest.skip(f"the compiler makes libraries for another machine: {error}")
    package = tmp_path / "counted" / "forebay"
    shutil.copytree(Path(forebay.__file__).parent, package, copy_function=os.symlink)
    compiled = package / Path(_forebay.__file__).name
    bytes_ = compiled.read_bytes()
    compiled.unlink()
    compiled.write_bytes(bytes_.replace(b"\0PyEval_SaveThread\0", b"\0PyEval_SaveCounts\0"))
    return [str(library), str(package.parent)]


def test_a_blocking_call_gives_the_lock_up_once_and_a_start_keeps_it(
    data: Data, counting: list[str]
) -> None:
    library, package = counting
    data[0].read_bytes()  # into the page cache
    done = program(CALLS, library, data[0], package, Path(__file__).parent, timeout=60)
    counts = json.loads(done.stdout)
    assert len(counts) == 22 and counts == {name: int(name[0]) for name in counts}


def test_a_tensor_is_looked_at_without_giving_the_lock_up(
    engine: forebay.Engine, data: Data
) -> None:
    torch = pytest.importorskip("torch", reason="no torch")
    if not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        pytest.skip("this torch has no functions of DLPack 1.2")
    data[0].read_bytes()
    hold, turns, stop = partial(sum, range(500_000)), list[None](), False

    def take_turns() -> None:
        while not stop:
            turns.append(None)
            hold()

    target = torch.empty(1000, dtype=torch.uint8)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=take_turns)
    thread.start()
    try:
        with engine.open(data[0]) as file:
            file.read_into(target)  # the first one imports
            # While this thread holds the lock, the other one asks for it, and then gets it with the
            # next release. No Python code runs between the steps.
            for _ in range(5):
                steps = [hold, turns.__len__, partial(file.start_read_into, target), turns.__len__]
                _, before, _, after = tuple(map(operator.call, steps))
                assert before == after
    finally:
        stop = True
        thread.join()
        sys.setswitchinterval(switch)
