"""Tries an installed package in an environment without other packages."""

import subprocess
import sysconfig
import tempfile
from pathlib import Path

import forebay
import forebay.kvikio  # noqa: F401

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
    read = [command, "read", path, "--gpu", "none", "--format=json"]
    assert subprocess.run(read, capture_output=True, check=True).stdout
