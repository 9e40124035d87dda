"""The package itself: what it needs, how long it takes to import, its command, its limits."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import pickle
import pydoc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import forebay
import forebay.safetensors
import pytest
from conftest import program
from forebay import _types
from forebay._sizes import size_of


_ABOUT = ("kind", "message", "errno", "hint", "route", "path")
"""The fields of an error of the compiled part."""


def test_an_import_is_quick() -> None:
    code = """
import time
start = time.process_time()
import forebay
print(time.process_time() - start)
"""
    # Of the processor's time, of which a busy machine takes more as well, though not each time.
    took = []
    while not took or took[-1] >= 0.05 and len(took) < 20:
        took.append(float(program(code).stdout))
    assert took[-1] < 0.05, f"{took} s"


def test_an_import_needs_nothing() -> None:
    code = """
import sys
import threading
for name in ["numpy", "torch", "cupy"]:
    sys.modules[name] = None
import forebay
heavy = {"asyncio", "numpy", "torch", "subprocess", "concurrent.futures", "logging",
         "dataclasses", "inspect", "json", "pathlib", "tempfile", "forebay.safetensors"}
print(*sorted(name for name in heavy if sys.modules.get(name)))
"""
    assert program(code).stdout.split() == []


def test_load_file_is_there_without_an_import_of_its_own(tmp_path: Path) -> None:
    assert forebay.load_file is forebay.safetensors._load.load_file
    assert "load_file" in dir(forebay)
    shown = pydoc.render_doc(forebay)
    assert "load_file(filename: 'Paths', device: 'Device' = None" in pydoc.plain(shown)
    with pytest.raises(AttributeError, match="`forebay` has no attribute `load_files`"):
        forebay.load_files  # noqa: B018


def test_parts_are_imported_on_first_use() -> None:
    pytest.importorskip("torch", reason="no torch")
    code = """
import forebay
print(forebay.safetensors.patched.__name__, forebay.kvikio.CuFile.__name__, forebay.torch.load.__name__)
print(forebay.blocks.BlockStore.__name__, forebay.stream.LayerStream.__name__)
"""
    assert program(code).stdout.split() == ["patched", "CuFile", "load", "BlockStore", "LayerStream"]


def test_a_part_without_its_library_is_no_attribute() -> None:
    code = "import sys, forebay\nsys.modules['torch'] = None\nprint(hasattr(forebay, 'torch'))"
    assert program(code).stdout == "False\n"


def test_public_names_are_those_that_users_import() -> None:
    for module in [forebay, forebay.safetensors]:
        for name in module.__all__:
            value = getattr(module, name)
            assert not getattr(value, "__module__", "").split(".")[-1].startswith("_"), name
            if isinstance(value, type) and issubclass(value, Exception):
                assert pickle.loads(pickle.dumps(value)) is value
    raised = [forebay._errors.make(dict.fromkeys(_ABOUT) | {"kind": "system", "errno": number})
              for number in range(1, 130)]
    assert {type(error).__module__ for error in raised} == {"forebay"}
    assert {"typing", "annotations"}.isdisjoint(vars(forebay))
    assert not [name for name in dir(forebay) if name.startswith("_") and name != "__version__"]


def test_keywords_of_the_stub_are_those_of_the_calls() -> None:
    several = ("exact", "urgent", "size", "offset", "targets", "self")
    assert set(inspect.signature(forebay.File.read_into_all).parameters) == set(several)
    for prefix in ("", "start_"):
        for call, first, keywords in [
            (getattr(forebay.File, f"{prefix}read_into"), {"target", "offset"}, _types.Read),
            (getattr(forebay.File, f"{prefix}write_from"), {"source", "offset"}, _types.Write),
            (getattr(forebay.File, f"{prefix}readv"), {"requests"}, _types.ReadV),
            (getattr(forebay.File, f"{prefix}writev"), {"requests"}, _types.WriteV),
            (getattr(forebay.Engine, f"{prefix}read_many"), {"requests"}, _types.ReadMany),
            (getattr(forebay.Engine, f"{prefix}write_many"), {"requests"}, _types.WriteMany),
        ]:
            found = set(inspect.signature(call).parameters)
            assert found == {"self"} | first | set(keywords.__annotations__), call


def test_models_need_no_torch(tmp_path: Path) -> None:
    pytest.importorskip("numpy", reason="no NumPy")
    code = f"""
import sys
import threading
sys.modules["torch"] = None
import forebay, numpy
from forebay.safetensors import save_file
save_file({{"weight": numpy.arange(6.0)}}, {str(tmp_path / "m.safetensors")!r})
print(forebay.load_file({str(tmp_path / "m.safetensors")!r}, framework="numpy")["weight"].sum())
"""
    assert program(code).stdout == "15.0\n"


@pytest.mark.parametrize("words", [["read", "file", "--gpu", "none"], ["--help"]])
def test_a_closed_stdout_is_an_error_of_the_command(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "file").write_bytes(b"data")
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-P", "-m", "forebay", *words]
    done = subprocess.run(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and "cannot write to stdout" in done.stderr


def test_no_thread_starts_before_the_first_transfer() -> None:
    out = program(
        """
import os
def threads():
    return len(os.listdir("/proc/self/task"))
before = threads()
import forebay
engine = forebay.default_engine()
print(threads() - before)
"""
    )
    assert out.stdout.strip() == "0"


def test_the_command_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    forebay = [sys.executable, "-m", "forebay"]
    done = subprocess.run([*forebay, "--help"], capture_output=True, text=True, check=True)
    assert "Usage: forebay" in done.stdout and "bench" in done.stdout
    done = subprocess.run([*forebay, "fly"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "fly" in done.stderr
    read = [*forebay, "read", str(tmp_path / "file"), "--gpu", "none", "--format=json"]
    done = subprocess.run(read, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)
    done = subprocess.run(
        [*forebay, "read", str(tmp_path / "missing")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "missing" in done.stderr


def test_the_package_has_its_command_and_types() -> None:
    try:
        files = importlib.metadata.files("forebay") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("forebay is not installed here, but found on the path")
    names = {str(file) for file in files}
    assert "forebay/py.typed" in names and "forebay/_forebay.pyi" in names
    assert any(name.startswith("forebay/_forebay.") and name.endswith(".so") for name in names)
    assert not any("tests" in name for name in names)
    entries = importlib.metadata.entry_points(group="console_scripts")
    assert "forebay" in {entry.name for entry in entries}


def test_limits_are_keywords() -> None:
    engine = forebay.Engine(slot_size="1M", readers=2, direct_io=False, watchdog=5)
    known = engine.options()
    assert known["slot_size"] == 1 << 20 and known["readers"] == 2
    assert known["direct_io"] is False and known["watchdog"] == 5
    assert forebay.Engine(slot_size=2 << 20).options()["slot_size"] == 2 << 20
    assert forebay.Engine(watchdog=None, readers=None).options()["readers"] is None
    with pytest.raises(TypeError, match="unknown limit `slots`"):
        forebay.Engine(slots=5)
    for wrong in [{"slot_size": 5}, {"readers": "many"}, {"watchdog": 0.001}, {"ring": "fast"}]:
        with pytest.raises(ValueError, match=f"^`{next(iter(wrong))}` cannot be"):
            forebay.Engine(**wrong)
    with pytest.raises(ValueError):
        forebay.Engine(watchdog=-1)
    assert repr(forebay.Engine(slot_size="1M")) == "<forebay.Engine, slots of 1048576 bytes>"


def test_a_missing_gpu_is_reported_in_pythons_words(engine: forebay.Engine) -> None:
    with pytest.raises(forebay.NoDevice) as error:
        engine.allocate(10, 999)
    assert '`device="cpu"`' in str(error.value) and "--gpu" not in str(error.value)


def test_the_default_that_help_shows_is_one(engine: forebay.Engine, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(10))
    with engine.open(tmp_path / "file") as file:
        assert file.read_into(bytearray(10), stream=...) == 10


def test_gpus_are_named_as_python_names_them() -> None:
    engine = forebay.Engine()
    for name in ["sim", "sim:0"]:
        known = engine.gpu(name)
        assert known and known["device"] == "sim:0" and known["simulated"]
    assert engine.gpu("cpu") is None
    with pytest.raises((forebay.NoDevice, ValueError)):
        engine.gpu("cuda:99")
    with pytest.raises(ValueError):
        engine.gpu("tpu:0")
    assert all(isinstance(note, str) for note in engine.notes())


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("8GiB", 8 << 30), ("64M", 64 << 20), ("1.5 GB", 1_500_000_000), ("100", 100), ("3kB", 3000)],
)
def test_sizes_are_written_as_people_write_them(text: str, nbytes: int) -> None:
    assert size_of(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1", "x", "GiB", "1 QB", "1e3", "0.1"])
def test_other_texts_are_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="`size` cannot be"):
        size_of(text)


@pytest.mark.skipif(not hasattr(forebay._forebay, "_panic"), reason="built without debug assertions")
def test_a_panic_below_python_is_an_error(data: tuple[Path, bytes]) -> None:
    from forebay._forebay import _panic  # type: ignore[attr-defined]

    with pytest.raises(forebay.Error, match="^internal error: 7 != 8 .*bug of Forebay: .* report"):
        _panic("7 != 8")
    # A callback that ends so does not end the thread that runs callbacks.
    called = threading.Event()
    with forebay.open(data[0]) as file:
        moving = file.start_read_into(bytearray(len(data[1])))
        with pytest.MonkeyPatch.context() as patch:
            seen: list[Any] = []
            patch.setattr(sys, "unraisablehook", lambda raised: seen.append(raised.exc_value))
            moving.add_done_callback(lambda _: _panic("again"))
            moving.add_done_callback(lambda _: called.set())
            assert called.wait(60)
    assert [type(error) for error in seen] == [forebay.Error]
