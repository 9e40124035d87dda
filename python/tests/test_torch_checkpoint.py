"""Checkpoints: at every moment the old file whole, or the new one."""

from __future__ import annotations

import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import content
from tensors import device_or_skip, torch_or_skip

torch = torch_or_skip()

from forebay import _access, _replace
from forebay.torch import save_checkpoint  # noqa: E402  # after torch is known

OLD, NEW = content(3 << 20, seed=1), content(5 << 20, seed=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    path.write_bytes(OLD)
    return path


def beside(path: Path) -> list[str]:
    """What else lies in the folder."""
    return sorted(name for name in os.listdir(path.parent) if name != path.name)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_tensors_and_bytes_are_written_in_a_row(path: Path, device: str) -> None:
    tensor = torch.arange(1000, dtype=torch.int16, device=device_or_skip(device))
    raw = bytes(tensor.cpu().view(torch.uint8).tolist())
    half = memoryview(bytearray(b"abcd"))[1:3]
    assert save_checkpoint(path, [b"head", tensor, b"", half, tensor[:1]]) == 2008
    assert path.read_bytes() == b"head" + raw + b"bc" + raw[:2]
    assert save_checkpoint(str(path), {"b": tensor, "a": tensor[1:2]}) == 2002
    assert path.read_bytes() == raw + raw[2:4]
    assert save_checkpoint(os.fsencode(path), tensor) == 2000
    assert save_checkpoint(path, NEW) == len(NEW) and path.read_bytes() == NEW
    assert save_checkpoint(path, []) == 0 and path.read_bytes() == b""
    assert beside(path) == []


def test_a_new_file_has_the_permissions_that_all_new_ones_have(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        save_checkpoint(tmp_path / "new", b"abc")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


@pytest.mark.parametrize("mode", [0o600, 0o666, 0o444])
def test_the_old_files_permissions_are_kept(path: Path, mode: int) -> None:
    path.chmod(mode)
    save_checkpoint(path, NEW)
    assert stat.S_IMODE(path.stat().st_mode) == mode and path.read_bytes() == NEW


def test_a_link_goes_on_to_name_what_it_named(path: Path) -> None:
    link = path.parent / "latest"
    link.symlink_to("checkpoint")
    save_checkpoint(link, NEW)
    assert link.is_symlink() and path.read_bytes() == NEW
    assert beside(path) == ["latest"]


def test_who_has_the_old_file_open_goes_on_reading_it(path: Path) -> None:
    with open(path, "rb") as file:
        save_checkpoint(path, NEW)
        assert file.read() == OLD


def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path) -> None:
    for name in ["n" * 255, "ü" * 127]:
        save_checkpoint(tmp_path / name, b"abc")
        assert (tmp_path / name).read_bytes() == b"abc"
    assert len(os.listdir(tmp_path)) == 2


def test_only_regular_files_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(IsADirectoryError, match="folder"):
        save_checkpoint(tmp_path / "folder", b"abc")
    with pytest.raises(OSError, match="pipe`: only a regular file"):
        save_checkpoint(tmp_path / "pipe", b"abc")
    with pytest.raises(FileNotFoundError, match="missing"):
        save_checkpoint(tmp_path / "missing" / "file", b"abc")
    assert sorted(os.listdir(tmp_path)) == ["folder", "pipe"]


def test_what_makes_no_sense_leaves_the_old_file(path: Path) -> None:
    for parts, says in [
        ([b"a", "text"], "part 1 is a `str`"),
        ([b"a", torch.zeros(4)[::2]], "part 1 do not lie in one piece"),
    ]:
        with pytest.raises((TypeError, ValueError), match=says):
            save_checkpoint(path, parts)
    assert path.read_bytes() == OLD and beside(path) == []


class Steps:
    """The system's calls, noted, one of which fails or is the process's last."""

    NOTED = ("open", "fchmod", "fsync", "rename")

    def __init__(self, last: int | None = None, error: BaseException | None = None) -> None:
        self.seen: list[str] = []
        self._last, self._error = last, error

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.NOTED:
            return real

        def noted(*arguments: Any, **keywords: Any) -> Any:
            self.seen.append(name)
            if len(self.seen) - 1 == self._last:
                if self._error is not None:
                    raise self._error
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **keywords)

        return noted


ALL_STEPS = ["open", "open", "open", "fchmod", "fsync", "rename", "fsync"]


def note(monkeypatch: pytest.MonkeyPatch, steps: Steps) -> None:
    for module in [_replace, _access]:
        monkeypatch.setattr(module, "os", steps)


def test_the_drive_has_the_bytes_before_the_name_and_the_name_before_the_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps()
    note(monkeypatch, steps)
    save_checkpoint(path, NEW)
    assert steps.seen == ALL_STEPS


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("last", range(len(ALL_STEPS)))
def test_a_step_that_fails_leaves_the_old_file_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, last: int, error: BaseException
) -> None:
    note(monkeypatch, Steps(last, error))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(type(error)):
        save_checkpoint(path, NEW)
    assert path.read_bytes() == (OLD if last < 6 else NEW)
    assert beside(path) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    code = f"""
import resource, signal
from forebay.torch import save_checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    save_checkpoint({str(path)!r}, bytes(5 << 20))
except OSError as error:
    print(error.errno)
"""
    assert int(run(code).stdout) == 27  # EFBIG
    assert path.read_bytes() == OLD and beside(path) == []


def run(code: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("last", range(len(ALL_STEPS)))
def test_a_process_killed_between_two_steps_leaves_a_whole_file(path: Path, last: int) -> None:
    code = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from conftest import content
from test_torch_checkpoint import NEW, Steps
from forebay import _access, _replace
from forebay.torch import save_checkpoint
_replace.os = _access.os = Steps({last})
save_checkpoint({str(path)!r}, NEW)
"""
    assert run(code, check=False).returncode == -signal.SIGKILL
    assert path.read_bytes() == (OLD if last < 6 else NEW)
    assert len(beside(path)) == (1 if 3 <= last <= 5 else 0)
    assert all(name.startswith(".checkpoint.") for name in beside(path))
    save_checkpoint(path, NEW)  # what was left is in nobody's way
    assert path.read_bytes() == NEW


def writer(path: Path) -> subprocess.Popen[str]:
    code = f"""
from forebay.torch import save_checkpoint
number = 0
while True:
    number += 1
    save_checkpoint({str(path)!r}, bytes([number % 256]) * (1_000_000 + number * 4099))
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
            told = [1, *map(int, process.stdout.read().split())]  # type: ignore[union-attr]
            process.wait()
        found = path.read_bytes()
        number = (len(found) - 1_000_000) // 4099
        assert found == bytes([number % 256]) * (1_000_000 + number * 4099)
        # What was told is on the drive; the next may be, though nobody could tell of it.
        assert number in (told[-1], told[-1] + 1)


def test_two_writers_at_once_leave_the_file_of_one_of_them(path: Path) -> None:
    processes = [writer(path) for _ in range(2)]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "1\n"
        for _ in range(20):
            found = path.read_bytes()
            assert found == found[:1] * len(found) and (len(found) - 1_000_000) % 4099 == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
