"""Ctrl-C ends loads of files whose headers, indexes, directories and pickles are as long as allowed."""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="no NumPy")

MOST = 99_000_000


def header(path: Path) -> Path:
    count = MOST // 67
    each = (
        f'"t{at:07}":{{"dtype":"U8","shape":[1],"data_offsets":[{at},{at + 1}]}}'
        for at in range(count)
    )
    text = f"{{{','.join(each)}}}".encode()
    path /= "header.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(count))
    return path


def index(path: Path) -> Path:
    each = (f'"t{at:07}":"model.safetensors"' for at in range(MOST // 31))
    path /= "model.safetensors.index.json"
    path.write_text(f'{{"weight_map":{{{",".join(each)}}}}}')
    return path


def directory(path: Path) -> Path:
    heads, entries, count = bytearray(), bytearray(), MOST // 60
    for at in range(count):
        name = b"a/data/%06d" % at
        entries += struct.pack("<4s24xH12xI", b"PK\1\2", len(name), len(heads)) + name
        heads += struct.pack("<4s22xHxx", b"PK\3\4", len(name)) + name
    sizes = struct.pack("<QQ", len(entries), len(heads))
    ends = struct.pack("<4sQ12xQQ", b"PK\6\6", 44, count, count) + sizes
    ends += struct.pack("<4s4xQI", b"PK\6\7", len(heads) + len(entries), 1)
    ends += struct.pack("<4s4xHHIIxx", b"PK\5\6", 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    path /= "directory.pt"
    path.write_bytes(heads + entries + ends)
    return path


def pickle(path: Path) -> Path:
    import zipfile

    with zipfile.ZipFile(path := path / "pickle.pt", "w") as made:
        made.writestr("a/data.pkl", b"\x80\2](" + b"K\1" * (MOST // 2) + b"e.")
        made.writestr("a/version", "3\n")
    return path


def metadata(path: Path) -> Path:
    pytest.importorskip("torch", reason="no torch")
    (path / ".metadata").write_bytes(b"\x80\2](" + b"K\1" * (MOST // 2) + b"e.")
    return path


def data(path: Path) -> Path:
    import numpy
    from forebay.safetensors import save_file

    save_file({str(at): numpy.zeros(1 << 20) for at in range(8)}, path / "data.safetensors")
    return path / "data.safetensors"


CODE = """
import sys, forebay
from forebay.safetensors import load_file
path = sys.argv[1]
if path.endswith((".safetensors", ".pt", ".json")):
    load = lambda: load_file(path, framework="numpy", backend="pread")
else:
    from forebay.torch.dcp import Reader
    load = lambda: Reader(path).read_metadata()
print("loads", flush=True)
while True:
    try:
        load()
    except forebay.Error as error:
        print(error, flush=True)
"""


def seconds_to_end(path: Path, after: float) -> float:
    child = subprocess.Popen(
        [sys.executable, "-c", CODE, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(after)
    begun = time.monotonic()
    child.send_signal(signal.SIGINT)
    errors = child.communicate(timeout=100)[1]
    assert b"KeyboardInterrupt" in errors, errors
    return time.monotonic() - begun


@pytest.mark.parametrize("make", [header, index, directory, pickle, metadata, data])
def test_an_interrupt_ends_a_load(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    # A machine may stand still once.
    assert any(seconds_to_end(path, after) < 2 for after in (0.8, 1.0, 1.2))
