"""Tries an installed package where nothing else is, and prints which files it has."""

import importlib.metadata
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import forebay
import forebay.kvikio

with tempfile.TemporaryDirectory(dir=".") as folder:
    path, expected = Path(folder, "file"), bytes(range(256)) * 1000
    with forebay.open(path, "w") as file:
        assert file.write_from(expected) == len(expected)
    assert path.read_bytes() == expected
    got = bytearray(len(expected))
    with forebay.open(path) as file:
        assert file.start_read_into(got).result(60) == len(expected)
    assert got == expected
    command = Path(sysconfig.get_path("scripts"), "forebay")
    read = [command, "read", path, "--gpu", "none", "--json"]
    assert subprocess.run(read, capture_output=True, check=True).stdout

for name in sorted(str(file) for file in importlib.metadata.files("forebay") or []):
    if name.startswith("forebay/") and "__pycache__" not in name:
        print("has", name)
