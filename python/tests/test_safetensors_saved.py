"""Saved models: at every moment the old file whole, or the new one."""

from __future__ import annotations

import errno
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import content, program
from faulty import mounted
from forebay._forebay import Replacement
from forebay.safetensors import load_file, safe_open, save_file
from tensors import device_or_skip

numpy = pytest.importorskip("numpy")

OLD, NEW = content(3 << 20, seed=1), content(5 << 20, seed=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    save(path, OLD)
    return path


def save(path: Path, content: bytes) -> None:
    save_file({"content": numpy.frombuffer(content, "uint8")}, path)


def saved(path: Path) -> bytes:
    """What `save` has put into a file, which is whole."""
    loaded = load_file(path, framework="numpy")
    return bytes(loaded["content"].tobytes())


def others(path: Path) -> list[str]:
    """What else lies in the folder."""
    return sorted(name for name in os.listdir(path.parent) if name != path.name)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_checkpoint_is_loaded_by_load_file(path: Path, device: str) -> None:
    torch = pytest.importorskip("torch")
    from forebay.torch import save_checkpoint

    module = torch.nn.Linear(100, 30, dtype=torch.bfloat16, device=device_or_skip(device))
    state = module.state_dict()
    for name in (path, str(path), os.fsencode(path)):
        assert save_checkpoint(name, state, {"step": "7"}) == path.stat().st_size
    loaded = load_file(path, device)
    with safe_open(path) as file:
        assert file.metadata() == {"step": "7"}
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], state[name]) for name in state)
    assert others(path) == []
    optimizer = torch.optim.Adam(module.parameters()).state_dict()
    with pytest.raises(TypeError, match="`state` is of type `dict`.*`torch.distributed.checkpoint`"):
        save_checkpoint(path, optimizer)
    assert load_file(path, device).keys() == state.keys() and others(path) == []


def test_a_new_file_has_the_permissions_that_all_new_ones_have(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        save(tmp_path / "new", b"abc")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o666, 0o444])
def test_the_old_files_permissions_are_kept(path: Path, mode: int) -> None:
    path.chmod(mode)
    save(path, NEW)
    assert stat.S_IMODE(path.stat().st_mode) == mode and saved(path) == NEW


def test_a_link_keeps_its_target(path: Path) -> None:
    link = path.parent / "latest"
    link.symlink_to("checkpoint")
    save(link, NEW)
    assert link.is_symlink() and saved(path) == NEW
    assert others(path) == ["latest"]


def test_an_open_old_file_can_still_be_read(path: Path) -> None:
    with open(path, "rb") as file:
        save(path, NEW)
        assert file.read().endswith(OLD)


def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path) -> None:
    for name in ["n" * 255, "ü" * 127]:
        save(tmp_path / name, b"abc")
        assert saved(tmp_path / name) == b"abc"
    assert len(os.listdir(tmp_path)) == 2


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError, match="folder"):
        save(tmp_path / "folder", b"abc")
    with pytest.raises(OSError, match="no regular file.*pipe"):
        save(tmp_path / "pipe", b"abc")
    with pytest.raises(FileNotFoundError, match="missing"):
        save(tmp_path / "missing" / "file", b"abc")
    (tmp_path / "link").symlink_to("folder/")
    save(tmp_path / "link" / ".." / "file", b"abc")
    for end in ("new/", "new/.", "file/", "file/.", "folder/", "folder/.", "link/"):
        with pytest.raises(OSError, match="folder|not found|No such file|Not a directory"):
            save_file({"content": numpy.zeros(3, "uint8")}, f"{tmp_path}/{end}")
    (tmp_path / "link").unlink()
    (tmp_path / "file").unlink()
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


def test_the_drive_has_the_bytes_before_the_name_and_the_name_before_the_end(
    tmp_path: Path,
) -> None:
    with mounted(tmp_path, log=1) as mount:
        save(mount / "checkpoint", OLD)
    calls = (tmp_path / "calls").read_text().split()
    steps = [name for name in calls if name in ("write", "fsync", "rename", "fsyncdir")]
    assert list(dict.fromkeys(steps)) == ["write", "fsync", "rename", "fsyncdir"]
    assert steps[-3:] == ["fsync", "rename", "fsyncdir"]


@pytest.mark.parametrize("step", ["create", "write", "chmod", "fsync", "flush", "rename"])
def test_a_step_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, step: str) -> None:
    (tmp_path / "below").mkdir()
    save(path := tmp_path / "below" / "checkpoint", OLD)
    before = len(os.listdir("/proc/self/fd"))
    with mounted(tmp_path, **{step: errno.EIO}) as mount:
        with pytest.raises(OSError, match="checkpoint") as error:
            save(mount / "checkpoint", NEW)
        assert error.value.errno == errno.EIO
        assert saved(mount / "checkpoint") == OLD and others(mount / "checkpoint") == []
        assert len(os.listdir("/proc/self/fd")) <= before + 2  # the server's pipes
    assert saved(path) == OLD


def test_a_folder_that_cannot_be_synced_is_an_error_with_the_new_file_in_place(
    tmp_path: Path,
) -> None:
    with mounted(tmp_path, fsyncdir=errno.EIO) as mount:
        with pytest.raises(OSError, match="the new file is in place"):
            save(mount / "checkpoint", NEW)
        assert saved(mount / "checkpoint") == NEW and others(mount / "checkpoint") == []


def test_an_interrupt_at_any_moment_leaves_a_whole_file_and_nothing_else(
    path: Path, seed: int
) -> None:
    code = f"""
import os, random, signal, sys, time
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_safetensors_saved import NEW, OLD, save, saved
from pathlib import Path
path, rng, rounds = Path(sys.argv[1]), random.Random(int(sys.argv[2])), int(sys.argv[3])

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
begun = time.monotonic()
save(path, OLD)
took = time.monotonic() - begun
before, seen = len(os.listdir("/proc/self/fd")), set()
for number in range(rounds):
    try:
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, rng.random() * 1.2 * took))
        save(path, NEW if number % 2 else OLD)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        seen.add("interrupted")
    assert saved(path) in (OLD, NEW)
    assert os.listdir(path.parent) == [path.name], os.listdir(path.parent)
assert len(os.listdir("/proc/self/fd")) == before and "interrupted" in seen
"""
    rounds = 60 * int(os.environ.get("FOREBAY_STRESS", "1"))
    program(code, path, seed, min(rounds, 3000), timeout=1200)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    code = f"""
import os, resource, signal
import numpy
from forebay.safetensors import save_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    save_file({{"a": numpy.zeros(5 << 20, "uint8")}}, {str(path)!r})
except OSError as error:
    # The exception has the save's frames, but no descriptor: it would keep the file's space.
    with os.scandir("/proc/self/fd") as numbers:
        names = [os.readlink(number) for number in numbers]
    print(error.errno, [name for name in names if {str(path.parent)!r} in name])
"""
    assert program(code).stdout == "27 []\n"  # EFBIG
    assert saved(path) == OLD and others(path) == []


def test_files_of_killed_writers_go_with_the_next_save_and_others_stay(path: Path) -> None:
    folder, name = path.parent, f".checkpoint.{'0' * 32}.tmp"
    kept = [f".checkpoint.{'g' * 32}.tmp", f".other.{'0' * 32}.tmp", ".checkpoint.tmp"]
    for each in (name, *kept):
        (folder / each).write_bytes(b"left")
    os.mkfifo(folder / f".checkpoint.{'1' * 32}.tmp")
    with Replacement(path) as new:  # of another writer
        save(path, NEW)
        assert new.number and len(others(path)) == len(kept) + 2
    assert others(path) == sorted([*kept, f".checkpoint.{'1' * 32}.tmp"])


def test_a_child_that_leaves_a_save_does_not_end_it(path: Path) -> None:
    code = f"""
import os, signal, sys
from forebay import _replace
from forebay._forebay import Replacement

with Replacement({str(path)!r}) as new:
    os.write(new.number, b"new")
    for leave in (new.__exit__, lambda: new.commit(False)):
        if (child := os.fork()) == 0:
            try:
                leave()
            except OSError:
                os._exit(3)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status))
    new.commit(False)
"""
    assert program(code).stdout == "0\n3\n"
    assert path.read_bytes() == b"new" and others(path) == []


@pytest.mark.parametrize("change", ["rename", "chmod", "link and unlink"])
def test_a_change_of_no_byte_does_not_end_a_load(path: Path, change: str) -> None:
    def is_wanted(_: str) -> bool:  # when the file is open
        other = path.parent / "other"
        if change == "rename":
            path.rename(other)
        elif change == "chmod":
            path.chmod(0o400)
        else:
            os.link(path, other)
            other.unlink()
        return True

    found = load_file(path, names=is_wanted, framework="numpy", copy=True)
    assert bytes(found["content"].tobytes()) == OLD


def writer(path: Path) -> subprocess.Popen[str]:
    code = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_safetensors_saved import save
number = 0
while True:
    number += 1
    save({str(path)!r}, bytes([number % 256]) * (1_000_000 + number * 4099))
    print(number, flush=True)
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def seed() -> Iterator[int]:
    seed = int(os.environ.get("FOREBAY_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    yield seed


def test_a_process_killed_at_any_moment_leaves_a_whole_file(path: Path, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(int(os.environ.get("FOREBAY_STRESS", "8"))):
        process = writer(path)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            time.sleep(rng.uniform(0.0, 0.1))
        finally:
            process.kill()
            reported = [1, *map(int, process.stdout.read().split())]  # type: ignore[union-attr]
            process.wait()
        found = saved(path)
        number = (len(found) - 1_000_000) // 4099
        assert found == bytes([number % 256]) * (1_000_000 + number * 4099)
        # The last reported file is on the drive; the next may be, although it was not reported.
        assert number in (reported[-1], reported[-1] + 1)


def test_two_writers_at_once_leave_the_file_of_one_of_them(path: Path) -> None:
    processes = [writer(path) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "1\n"
        for _ in range(20):
            found = saved(path)
            assert found == found[:1] * len(found) and (len(found) - 1_000_000) % 4099 == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
