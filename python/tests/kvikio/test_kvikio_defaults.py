"""KvikIO's settings: what they change here, and where that is noted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import forebay
import forebay.kvikio as kvikio
import pytest
from conftest import program
from forebay.kvikio import defaults

Data = tuple[Path, bytes]


@pytest.fixture(autouse=True)
def unset() -> Iterator[None]:
    before = dict(defaults._values)
    yield
    defaults._values.clear()
    defaults._values.update(before)


def limits_of(path: Path) -> dict[str, object]:
    with kvikio.CuFile(path) as file:
        return file.file.engine.options()


def test_files_belong_to_the_engine_that_all_use(data: Data) -> None:
    with kvikio.CuFile(data[0]) as file:
        assert file.file.engine is forebay.default_engine()


def test_threads_are_readers_of_files_opened_from_then_on(data: Data) -> None:
    before = kvikio.CuFile(data[0])
    with defaults.set("num_threads", 3):
        with kvikio.CuFile(data[0]) as file, kvikio.CuFile(data[0]) as other:
            assert file.file.engine.options()["readers"] == 3
            assert file.file.engine is other.file.engine
            target = bytearray(len(data[1]))
            assert file.read(target) == len(target) and target == data[1]
    assert before.file.engine is forebay.default_engine()
    with kvikio.CuFile(data[0]) as after:
        assert after.file.engine is forebay.default_engine()


def test_an_engine_is_found_again(data: Data) -> None:
    with defaults.set("num_threads", 3):
        first = kvikio.CuFile(data[0])
    with defaults.set("num_threads", 4):
        assert limits_of(data[0])["readers"] == 4
    with defaults.set("thread_pool_nthreads", 3), kvikio.CuFile(data[0]) as again:
        assert again.file.engine is first.file.engine


def test_direct_io_is_off_where_both_settings_are(data: Data) -> None:
    defaults.set("auto_direct_io_read", False)
    assert limits_of(data[0])["direct_io"] is True
    assert any("auto_direct_io_read" in note for note in defaults.notes())
    with defaults.set({"auto_direct_io_read": False, "auto_direct_io_write": False}):
        assert limits_of(data[0])["direct_io"] is False and not defaults.notes()
        assert not kvikio.CuFile(data[0]).is_direct_io_supported()
    assert limits_of(data[0])["direct_io"] is True


def test_a_file_in_memory_has_no_direct_io() -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or not os.access(shared, os.W_OK):
        pytest.skip("no /dev/shm")
    path = shared / f"forebay-test-{os.getpid()}"
    try:
        with kvikio.CuFile(path, "w+") as file:
            assert not file.is_direct_io_supported()
    finally:
        path.unlink()


def test_settings_without_effect_are_noted_with_the_reason() -> None:
    assert defaults.notes() == []
    defaults.set({"task_size": 1 << 20, "num_threads": 4})
    defaults.set("compat_mode", kvikio.CompatMode.OFF)
    notes = defaults.notes()
    assert len(notes) == 2
    assert notes[0].startswith("`task_size` has no effect: the engine divides")
    assert "the engine chooses the route" in notes[1]


def test_nothing_is_set_where_one_value_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="`num_threads` cannot be 0"):
        defaults.set({"task_size": 5, "num_threads": 0})
    assert defaults.get("task_size") == 4 << 20


def test_setting_what_was_read_changes_nothing(data: Data) -> None:
    for name in ("num_threads", "auto_direct_io_read", "auto_direct_io_write", "task_size"):
        defaults.set(name, defaults.get(name))
    assert limits_of(data[0])["direct_io"] is True


def test_a_forked_child_has_an_engine_of_its_own(data: Data) -> None:
    done = environment(
        f"""
import os, sys
import forebay.kvikio as kvikio
defaults.set("num_threads", 2)
parent = kvikio.CuFile({str(data[0])!r})
assert parent.read(bytearray(1000)) == 1000
child = os.fork()
if child == 0:
    with kvikio.CuFile({str(data[0])!r}) as file:
        assert file.file.engine is not parent.file.engine
        assert file.file.engine.options()["readers"] == 2
        os._exit(0 if file.read(bytearray(1000)) == 1000 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert done.returncode == 0, done.stderr


def environment(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("KVIKIO_")}
    code = f"from forebay.kvikio import defaults; {code}"
    return program(code, ends=None, env={**kept, **variables})


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("KVIKIO_NTHREADS", "5", "num_threads", "5"),
        ("KVIKIO_NUM_THREADS", "6", "num_threads", "6"),
        ("KVIKIO_TASK_SIZE", "1048576", "task_size", "1048576"),
        ("KVIKIO_TASK_SIZE", "16MiB", "task_size", "16777216"),
        ("KVIKIO_TASK_SIZE", "16MB", "task_size", "16000000"),
        ("KVIKIO_TASK_SIZE", "4294967296", "task_size", "4294967296"),
        ("KVIKIO_BOUNCE_BUFFER_SIZE", "2 k", "bounce_buffer_size", "2048"),
        ("KVIKIO_GDS_THRESHOLD", "0", "gds_threshold", "0"),
        ("KVIKIO_COMPAT_MODE", "on", "compat_mode", "1"),
        ("KVIKIO_COMPAT_MODE", "AUTO", "compat_mode", "2"),
        ("KVIKIO_AUTO_DIRECT_IO_WRITE", "off", "auto_direct_io_write", "False"),
        ("KVIKIO_HTTP_STATUS_CODES", "429, 503", "http_status_codes", "[429, 503]"),
    ],
)
def test_variables_are_read(variable: str, text: str, name: str, value: str) -> None:
    done = environment(f"print(defaults.get({name!r}).__str__())", **{variable: text})
    assert done.stdout.strip() == value, done.stderr


@pytest.mark.parametrize(
    ("variables", "printed"),
    [
        ({"KVIKIO_TASK_SIZE": "16 pounds"}, "cannot be `16 pounds`: it takes a number, or a size"),
        ({"KVIKIO_TASK_SIZE": "0"}, "the variable `KVIKIO_TASK_SIZE` cannot be 0"),
        ({"KVIKIO_NTHREADS": "many"}, "it takes a number"),
        ({"KVIKIO_NTHREADS": "-1"}, "it takes a number"),
        ({"KVIKIO_COMPAT_MODE": "perhaps"}, "`on`, `off` or `auto`"),
        ({"KVIKIO_NTHREADS": "2", "KVIKIO_NUM_THREADS": "3"}, "differ"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(variables: dict[str, str], printed: str) -> None:
    done = environment("", **variables)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ValueError: the variable") and printed in last
    assert all(name in last for name in variables)


@pytest.mark.parametrize(
    "variable",
    [
        "KVIKIO_THREAD_POOL_PER_BLOCK_DEVICE",
        "KVIKIO_THREAD_POOL_NTHREADS",
        "KVIKIO_REMOTE_IO_NUM_REACTORS",
        "KVIKIO_Task_Size",
    ],
)
def test_a_variable_that_nothing_reads_is_noted(variable: str) -> None:
    done = environment("print(defaults.notes())", **{variable: "1"})
    assert f"the variable `{variable}` has no effect" in done.stdout
    with pytest.raises(KeyError, match="unknown setting"):
        defaults.set(variable, 1)
