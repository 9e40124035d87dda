"""One table of behaviours, held against Forebay and, where it is installed, KvikIO."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="no numpy")

from behaviours import BEHAVIOURS, PAGE
from expected import DIFFERENCES, EXPECTED

HERE = Path(__file__).parent


def outcomes(library: str, folders: list[str]) -> dict[str, Any]:
    """What the behaviours come to, in a process of their own: KvikIO may end it."""
    known = {name: text for name, text in os.environ.items() if not name.startswith("KVIKIO_")}
    paths = [*folders, known.get("LD_LIBRARY_PATH", "")]
    environment = {**known, "LD_LIBRARY_PATH": ":".join(path for path in paths if path)}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "behaviours.py"), library],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:]
        raise ImportError(f"it ends with {done.returncode}: {' '.join(last)}")
    known_outcomes: dict[str, Any] = json.loads(done.stdout)
    return known_outcomes


def folder_of_driver(folder: Path) -> list[str]:
    """Where KvikIO finds a driver of CUDA; one without GPUs is made where there is none."""
    try:
        ctypes.CDLL("libcuda.so.1")
        return []
    except OSError:
        compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no driver of CUDA, and no `cc` to make one without GPUs")
    made = [compiler, "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1")]
    subprocess.run([*made, str(HERE / "no_gpu.c")], check=True)
    return [str(folder)]


def folders_of_kvikio() -> list[str]:
    """Where its wheels keep their libraries, which it does not all find itself."""
    found: list[str] = []
    for package, inside in [
        ("libkvikio", "lib64"),
        ("rapids_logger", "lib64"),
        ("nvidia", "*/lib"),
    ]:
        spec = importlib.util.find_spec(package)
        places = (spec.submodule_search_locations or []) if spec else []
        found.extend(str(folder) for place in places for folder in Path(place).glob(inside))
    return found


needs_small_pages = pytest.mark.skipif(
    PAGE != 4096, reason="the table was made with pages of 4 KiB"
)


@pytest.fixture(scope="module")
def forebay_outcomes() -> dict[str, Any]:
    return outcomes("forebay.kvikio", [])


@needs_small_pages
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_forebay_behaves_as_the_table_says(forebay_outcomes: dict[str, Any], name: str) -> None:
    expected, outcome = EXPECTED[name], forebay_outcomes[name]
    if name in DIFFERENCES:
        assert expected != outcome, "it is no difference any more"
        expected, _ = DIFFERENCES[name]
    assert expected == outcome


@needs_small_pages
def test_kvikio_behaves_as_the_table_says(tmp_path: Path) -> None:
    spec = importlib.util.find_spec("kvikio")
    if spec is None or spec.origin is None:  # the folder of these tests has that name as well
        pytest.skip("KvikIO is not installed")
    folders = folders_of_kvikio() + folder_of_driver(tmp_path)
    try:
        known = outcomes("kvikio", folders)
    except ImportError as error:
        pytest.skip(f"KvikIO does not run here: {error}")
    wrong = {name: (EXPECTED[name], known[name]) for name in known if EXPECTED[name] != known[name]}
    assert not wrong and set(known) == set(EXPECTED)


def test_the_table_has_each_behaviour_once() -> None:
    assert set(EXPECTED) == set(BEHAVIOURS)
    assert set(DIFFERENCES) <= set(BEHAVIOURS)
    assert all(reason for _, reason in DIFFERENCES.values())


def test_the_documentation_lists_each_difference() -> None:
    text = (HERE.parents[2] / "docs/kvikio.md").read_text()
    # Line breaks may lie anywhere in a sentence.
    words = " ".join(text.split())
    missing = [reason for _, reason in DIFFERENCES.values() if reason not in words]
    assert not missing
