"""The file-like view, and what the command measures as plain data."""

from __future__ import annotations

import errno
import errno
import io
import mmap
import json
import pickle
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import forebay
import pytest
from faulty import mounted

Data = tuple[Path, bytes]


def test_a_raw_file_is_one_of_pythons(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    with forebay.RawFile(engine.open(path)) as raw, open(path, "rb", buffering=0) as plain:
        assert isinstance(raw, io.RawIOBase) and raw.readable() and raw.seekable()
        assert not raw.writable() and raw.mode == "rb" and str(raw.name) == str(path)
        for step in [
            lambda f: f.read(10),
            lambda f: f.seek(-5, 2),
            lambda f: f.read(10),
            lambda f: f.read(10),
            lambda f: f.seek(1000),
            lambda f: f.seek(10, 1),
            lambda f: f.readinto(bytearray(7)),
            lambda f: f.tell(),
            lambda f: f.read(),
            lambda f: f.tell(),
            lambda f: f.seek(1 << 40),
            lambda f: f.read(5),
            lambda f: f.seek(3),
            lambda f: f.read(None),
        ]:
            assert step(raw) == step(plain)
        for wrong in [lambda f: f.seek(-1), lambda f: f.seek(0, 7), lambda f: f.seek(-(10**9), 2)]:
            errors = []
            for file in (raw, plain):
                with pytest.raises(OSError) as raised:
                    wrong(file)
                errors.append(raised.value.errno)
            assert errors == [errno.EINVAL] * 2
        for file in (raw, plain):
            with pytest.raises(TypeError):
                file.readinto(b"read-only")
        with pytest.raises(io.UnsupportedOperation):
            raw.write(b"abc")
    assert raw.closed
    with pytest.raises(ValueError):
        raw.read(1)
    with io.BufferedReader(forebay.RawFile(engine.open(path))) as buffered:
        assert buffered.read(100) + buffered.read() == bytes_


def test_libraries_read_and_write_by_a_raw_file(engine: forebay.Engine, tmp_path: Path) -> None:
    with forebay.RawFile(engine.open(tmp_path / "a.zip", "w")) as raw:
        with zipfile.ZipFile(raw, "w") as archive:
            archive.writestr("name", b"content" * 1000)
    with forebay.RawFile(engine.open(tmp_path / "a.zip")) as raw:
        assert zipfile.ZipFile(raw).read("name") == b"content" * 1000
    with forebay.RawFile(engine.open(tmp_path / "a.tar", "w")) as raw:
        with tarfile.open(fileobj=raw, mode="w") as tar:
            tar.add(tmp_path / "a.zip", "zip")
    copy = io.BytesIO()
    with forebay.RawFile(engine.open(tmp_path / "a.tar")) as raw:
        shutil.copyfileobj(raw, copy)
    copy.seek(0)
    assert tarfile.open(fileobj=copy).getnames() == ["zip"]
    # Appending reads, writes over the end, and sets the length.
    with forebay.RawFile(engine.open(tmp_path / "a.zip", "r+")) as raw:
        with zipfile.ZipFile(raw, "a") as archive:
            archive.writestr("more", b"new")
    assert zipfile.ZipFile(tmp_path / "a.zip").namelist() == ["name", "more"]
    # A file that is shorter than the end of an archive's directory.
    (tmp_path / "short").write_bytes(b"x")
    with forebay.RawFile(engine.open(tmp_path / "short", "r+")) as raw:
        with zipfile.ZipFile(raw, "a") as archive:
            archive.writestr("new", b"1")
    assert zipfile.ZipFile(tmp_path / "short").namelist() == ["new"]
    with forebay.RawFile(engine.open(tmp_path / "a.tar", "r+")) as raw:
        with tarfile.open(fileobj=raw, mode="a") as tar:
            tar.add(tmp_path / "a.zip", "again")
    with tarfile.open(tmp_path / "a.tar") as tar:
        assert tar.getnames() == ["zip", "again"]


def test_a_raw_file_is_truncated_as_pythons(engine: forebay.Engine, tmp_path: Path) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    with forebay.RawFile(engine.open(path, "w")) as raw, open(other, "w+b", buffering=0) as plain:
        for step in [
            lambda f: f.write(b"0123456789"),
            lambda f: f.seek(4),
            lambda f: f.truncate(),
            lambda f: f.tell(),
            lambda f: f.truncate(8),
            lambda f: f.write(b"x"),
            lambda f: f.truncate(0),
            lambda f: f.tell(),
            lambda f: f.write(b"end"),
        ]:
            assert step(raw) == step(plain)
        for wrong in (-1, 1 << 70):
            with pytest.raises((ValueError, OverflowError, OSError)):
                raw.truncate(wrong)
    assert path.read_bytes() == other.read_bytes() == bytes(5) + b"end"
    with forebay.RawFile(engine.open(path)) as raw, pytest.raises(io.UnsupportedOperation):
        raw.truncate(1)
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0):
        with forebay.RawFile(engine.open(path, "r+")) as raw, pytest.raises(forebay.Error):
            raw.truncate(1)


def test_a_map_is_plain_data_that_shows_itself(tmp_path: Path) -> None:
    found = forebay.map(tmp_path)
    assert isinstance(found, dict) and found["schema"] == 1
    assert json.loads(json.dumps(found)) == found
    rows = found.rows()
    assert rows and rows[0]["path"] == str(tmp_path)
    assert str(tmp_path) in repr(found)
    assert "<table>" in found._repr_html_()


def test_a_bench_is_plain_data_with_a_picture(tmp_path: Path) -> None:
    options = {"cache": "warm", "direction": "read", "time": "100ms", "repeats": 2}
    found = forebay.bench(tmp_path, size="4M", gpu="sim", **options)
    measured = [sample for sample in found["samples"] if sample["measured"]]
    rows = [row for row in found.rows() if row["GB/s"] is not None]
    assert len(measured) == 2 * len(rows) and found["run"]["verb"] == "bench"
    assert {row["method"] for row in rows} >= {"forebay", "standard"}
    assert all(row["verified"] is not False for row in rows)
    assert found.plot().count("<rect") == len(rows) and "forebay" in found.plot()
    assert not list(tmp_path.iterdir()), "scratch stays"


def test_a_diagnosis_is_plain_data(tmp_path: Path) -> None:
    found = forebay.doctor(tmp_path, gpu="sim")
    assert json.loads(json.dumps(found)) == found and found["path"] == str(tmp_path)
    ends = {(one["direction"], one["required"]): one["end"] for one in found["transfers"]}
    assert ends["read", "cached"] == ends["write", "cached"] == "moved"
    assert {row["state"] for row in found.rows()} <= {"ok", "warning", "problem", "unknown"}
    assert found["sentence"] in repr(found) and found["sentence"]
    library = next(check for check in found["checks"] if check["name"] == "cufile_library")
    assert library["seen"] != "not queried", "a helper of this package queries it"
    assert not list(tmp_path.iterdir()), "scratch stays"


def test_a_diagnosis_of_what_is_broken_is_data_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "own.json"
    settings.write_text("{ damaged")
    monkeypatch.setenv("CUFILE_ENV_PATH_JSON", str(settings))
    found = forebay.doctor(settings, gpu="none")
    assert found["broken"] is True
    check = next(check for check in found["checks"] if check["name"] == "cufile_json")
    assert check["state"] == "problem" and check["broken"] and check["step"]


def test_a_record_is_diagnosed_at_the_path_that_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = tmp_path / "record"
    command = [sys.executable, "-P", "-m", "forebay", "doctor", str(tmp_path)]
    subprocess.run([*command, "--record", str(record)], check=True, stdout=subprocess.DEVNULL)
    monkeypatch.chdir("/")
    found = forebay.doctor(fixture=record)
    assert (found["path"], found["replay"]) == (str(tmp_path), str(record))
    assert found["transfers"] == [] and found["checks"]
    assert forebay.doctor(tmp_path, fixture=record)["path"] == str(tmp_path)
    with pytest.raises(forebay.Error, match="cannot replay"):
        forebay.doctor(fixture=tmp_path / "none")


def test_refusals_of_the_command_are_errors(tmp_path: Path) -> None:
    with pytest.raises(forebay.Error, match="forebay bench: ") as error:
        forebay.bench(tmp_path / "missing" / "file", size="1M")
    assert error.value.strerror
    with pytest.raises(forebay.RequestError, match="speed") as refused:
        forebay.bench(speed="high")
    assert refused.value.errno == errno.EINVAL and refused.value.hint
    again = pickle.loads(pickle.dumps(refused.value))
    assert str(again) == str(refused.value)


def test_the_command_is_this_packages_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forebay").mkdir()
    for name in ["__init__.py", "__main__.py"]:
        (tmp_path / "forebay" / name).write_text("raise SystemExit('another package')\n")
    monkeypatch.chdir(tmp_path)
    assert forebay.map(tmp_path).rows()


def test_a_bench_whose_data_were_wrong_raises_with_its_report(tmp_path: Path) -> None:
    with mounted(tmp_path, inverted=1) as folder:
        with pytest.raises(forebay.Error, match="forebay bench: .*wrong") as error:
            forebay.bench(folder, size="1M", gpu="none", repeats=1, time="100ms")
        report = error.value.report
        assert isinstance(report, forebay.Report) and report["run"]["schema"] == 1
        assert any(row["verified"] is False for row in report.rows())
        assert any("FUSE" in doubt["text"] for doubt in report["doubts"]), report["doubts"]
