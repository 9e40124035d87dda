"""Files: how they are named, opened and closed, and what goes wrong with them."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import forebay
import pytest
from arrays import SimArray
from conftest import content
from forebay._replace import put

Data = tuple[Path, bytes]


class Named:
    def __init__(self, path: object) -> None:
        self.path = path

    def __fspath__(self) -> object:
        return self.path


@pytest.mark.parametrize("kind", ["str", "bytes", "path", "path-like of bytes"])
def test_a_path_may_be_whatever_python_takes(engine: forebay.Engine, data: Data, kind: str) -> None:
    path, bytes_ = data
    named = {
        "str": str(path),
        "bytes": os.fsencode(path),
        "path": path,
        "path-like of bytes": Named(os.fsencode(path)),
    }[kind]
    with engine.open(named) as file:  # type: ignore[arg-type]
        got = bytearray(file.size)
        assert file.read_into(got) == len(bytes_)
        assert got == bytes_


def test_a_name_need_not_be_text(engine: forebay.Engine, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\xfe name"
    with open(path, "wb") as plain:
        plain.write(b"abc")
    with engine.open(path) as file:
        got = bytearray(3)
        file.read_into(got)
        assert got == b"abc"
        assert os.fsencode(file.name) == path
    missing = path + b"-missing"
    with pytest.raises(FileNotFoundError) as error:
        engine.open(missing)
    assert os.fsencode(error.value.filename) == missing


def test_a_name_has_no_null_byte(engine: forebay.Engine) -> None:
    for name in ["a\0b", b"a\0b"]:
        with pytest.raises(ValueError, match="null byte"):
            engine.open(name)
        with pytest.raises(ValueError, match="null byte"):
            engine.read(name)


def test_a_whole_file_is_read_by_whatever_names_it(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    for name in [path, str(path), os.fsencode(path)]:
        assert engine.read(name).tobytes() == bytes_


@pytest.mark.parametrize("name", [None, True, 1.5, ["a"], object()])
def test_other_objects_than_paths_are_refused(engine: forebay.Engine, name: object) -> None:
    with pytest.raises(TypeError):
        engine.open(name)  # type: ignore[arg-type]


def test_a_missing_file_is_pythons_own_error(engine: forebay.Engine, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        engine.open(tmp_path / "missing")
    assert isinstance(error.value, forebay.Error)
    assert error.value.errno == errno.ENOENT
    assert error.value.filename == str(tmp_path / "missing")


def test_a_folder_is_refused(engine: forebay.Engine, tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match="not a file") as error:
        engine.open(tmp_path)
    assert isinstance(error.value, forebay.Error) and error.value.errno == errno.EISDIR


def test_a_file_is_no_folder(engine: forebay.Engine, data: Data) -> None:
    with pytest.raises(NotADirectoryError) as error:
        engine.open(data[0] / "inside")
    assert isinstance(error.value, forebay.Error)


def test_a_descriptor_stays_the_callers(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    descriptor = os.open(path, os.O_RDONLY)
    with engine.open(descriptor) as file:
        got = bytearray(100)
        file.read_into(got, 1000)
        assert got == bytes_[1000:1100]
    assert os.read(descriptor, 10) == bytes_[:10]
    os.close(descriptor)
    for wrong in [descriptor, -1, 1 << 40]:
        with pytest.raises((OSError, ValueError, OverflowError)):
            engine.open(wrong)


def test_modes_are_those_of_python(engine: forebay.Engine, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with engine.open(path, "x") as file:
        file.write_from(b"0123456789")
    with pytest.raises(FileExistsError, match="cannot open.*give another path"):
        engine.open(path, "x")
    with engine.open(path, "r+b") as file:
        file.write_from(b"ab", 4)
    assert path.read_bytes() == b"0123ab6789"
    with engine.open(path, "rw") as file:
        file.write_from(b"c", 9)
    assert path.read_bytes() == b"0123ab678c"
    with engine.open(path, "w") as file:
        assert file.size == 0
    for wrong in ["a", "", "rr", "q", "r w"]:
        with pytest.raises(ValueError, match="unknown mode"):
            engine.open(path, wrong)


def test_a_file_for_reading_is_not_written(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    with engine.open(path) as file, pytest.raises(forebay.RequestError, match="for reading only"):
        file.write_from(b"abc")
    assert path.read_bytes() == bytes_


def test_a_closed_file_says_so_and_may_be_closed_again(engine: forebay.Engine, data: Data) -> None:
    path, _ = data
    file = engine.open(path)
    assert not file.closed
    file.close()
    file.close()
    assert file.closed and "closed" in repr(file)
    for call in [lambda: file.read_into(bytearray(1)), lambda: file.size, file.sync, file.evict]:
        with pytest.raises(ValueError, match="is closed"):
            call()
    with pytest.raises(ValueError, match="is closed"), file:
        pass


def test_closing_lets_transfers_continue(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    got = bytearray(len(bytes_))
    file = engine.open(path)
    transfer = file.start_read_into(got)
    file.close()
    assert transfer.result(60) == len(bytes_)
    assert got == bytes_


def test_offsets_are_distances_from_the_start(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    with engine.open(path) as file:
        for wrong in [-1, 1 << 64, -(1 << 70)]:
            refused = f"`offset` cannot be `{wrong}`: it takes a whole number of bytes, from 0 to"
            with pytest.raises(ValueError, match=re.escape(refused)):
                file.read_into(bytearray(1), wrong)
            with pytest.raises(forebay.RequestError, match=f"`size` cannot be `{wrong}`"):
                file.read_into(bytearray(1), size=wrong)
            with pytest.raises(forebay.RequestError, match=f"`length` cannot be `{wrong}`"):
                file.residency(0, wrong)
            with pytest.raises(forebay.RequestError, match=f"`nbytes` cannot be `{wrong}`"):
                engine.allocate(wrong)
        with pytest.raises(forebay.RequestError, match="`offset` cannot be `a number of 16610 bits"):
            file.read_into(bytearray(1), 10**5000)
        with pytest.raises(TypeError, match="'size'"):
            file.read_into(bytearray(1), size="1")  # type: ignore[arg-type]
        with pytest.raises(forebay.RequestError, match="the range ends beyond the largest file offset"):
            file.read_into(bytearray(1), 1 << 63)
        for far in [len(bytes_), 1 << 62, (1 << 63) - 2]:
            with pytest.raises(EOFError):
                file.read_into(bytearray(1), far)
        with pytest.raises(forebay.Error):
            file.read_into(bytearray(100), (1 << 63) - 50)


def test_whole_numbers_of_numpy_are_numbers(engine: forebay.Engine, data: Data) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    path, bytes_ = data
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for number in [np.int64, np.uint32, np.array]:
            target = np.zeros(100, "u1")
            with engine.open(np.int64(descriptor)) as file:
                assert file.read_into(target, number(7), size=number(50), stream=None) == 50
                assert target.tobytes() == bytes_[7:57] + bytes(50)
                address = np.uint64(target.ctypes.data)
                file.readv([(number(8), number(10), address)], device="cpu")
                assert target[:10].tobytes() == bytes_[8:18]
                file.readv([(number(9), number(10), target)])
                assert target[:10].tobytes() == bytes_[9:19]
                engine.read_many(
                    files=file,
                    offsets=[number(10)],
                    lengths=[number(10)],
                    addresses=[address],
                    device="cpu",
                )
                assert target[:10].tobytes() == bytes_[10:20]
                assert file.read_into((address, np.int64(5), "cpu"), number(11)) == 5
                assert file.residency(number(0), number(10))
            assert engine.allocate(number(100)).nbytes == 100
            made = forebay.Engine(readers=number(3), cufile=np.False_)
            forebay.Engine(cufile=np.True_)
            assert made.options()["readers"] == 3
    finally:
        os.close(descriptor)
    raw = forebay.RawFile(engine.open(path))
    assert type(raw.seek(np.int64(5))) is int and raw.read(2) == bytes_[5:7]
    for wrong in [1.5, np.float64(1), np.zeros(2, int)]:
        with pytest.raises(TypeError):
            engine.open(path).read_into(bytearray(1), wrong)


def test_an_engine_and_the_package_read_to_the_same_memory(data: Data) -> None:
    path, bytes_ = data
    engine = forebay.default_engine()
    assert forebay.read(path).device == engine.read(path).device
    for device in ["cpu", None]:
        found = [forebay.read(path, device), engine.read(path, device)]
        assert [buffer.device for buffer in found] == ["cpu", "cpu"]
        assert found[0].tobytes() == bytes_


def test_a_file_that_changed_is_no_early_end() -> None:
    assert not issubclass(forebay.FileChanged, EOFError)
    assert issubclass(forebay.FileChanged, forebay.Error)
    # A file that was cut ended early as well.
    assert issubclass(forebay.FileTruncated, forebay.FileChanged)
    assert issubclass(forebay.FileTruncated, forebay.EndOfFile)


def test_an_early_end_is_an_error_that_counts(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    got = bytearray(b"-" * 100)
    with engine.open(path) as file:
        with pytest.raises(forebay.EndOfFile) as error:
            file.read_into(got, len(bytes_) - 10)
        assert error.value.bytes == 10 and error.value.hint
        assert error.value.filename == str(path) and error.value.errno
        assert file.read_into(got, len(bytes_) - 10, exact=False) == 10
    assert got[:10] == bytes_[-10:] and got[10:] == b"-" * 90


def test_a_write_touches_no_other_byte(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    new = content(1_000_003, seed=2)
    with engine.open(path, "r+") as file:
        assert file.write_from(new, 12_345, sync="data") == len(new)
        file.sync()
        file.sync(data_only=True)
    expected = bytearray(bytes_)
    expected[12_345 : 12_345 + len(new)] = new
    assert path.read_bytes() == expected
    with engine.open(path, "r+") as file, pytest.raises(ValueError, match="`sync` cannot be"):
        file.write_from(b"a", sync="later")  # type: ignore[arg-type]


def test_an_unavailable_route_is_an_error(engine: forebay.Engine, data: Data) -> None:
    path, _ = data
    with engine.open(path) as file:
        with pytest.raises(forebay.RouteUnavailable) as error:
            file.read_into(bytearray(10), route="direct")
        assert error.value.route == "direct" and error.value.hint
        with pytest.raises(ValueError, match="route"):
            file.read_into(bytearray(10), route="fast")  # type: ignore[arg-type]


def test_the_layers_below_a_file_are_reported(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    with engine.open(path) as file:
        assert file.about()["file_system"]
        known = file.residency()
        assert known["length"] == len(bytes_) or known["unknown"]
        assert file.residency(10, 20)["length"] in (20, None)
        left = file.evict()
        assert set(left) == {"resident", "length", "unknown"}
    with engine.open(path, "r+") as file:
        assert file.preallocate(0, 4_000_000) in (True, False)
        assert file.size == len(bytes_)


def test_statistics_count_what_the_stages_took(data: tuple[Path, bytes]) -> None:
    engine = forebay.Engine()
    nothing = forebay.Durations(0, 0.0, None, None, None, 0.0)
    assert engine.statistics() == forebay.Statistics(nothing, nothing, nothing, nothing, 0)
    target = engine.allocate(len(data[1]), "sim")
    with engine.open(data[0]) as file:
        file.start_read_into(target).result()
    for stage in (engine.statistics().file, engine.statistics().copy):
        assert stage.samples > 0 and stage.median and stage.p99 and stage.p999
        assert 0 < stage.median <= stage.p99 <= stage.p999 <= stage.longest <= stage.total
    before = engine.statistics()
    with engine.open(data[0]) as file:
        file.start_read_into(target).result()
    assert engine.statistics().file.samples > before.file.samples


def test_several_targets_get_the_same_bytes(
    engine: forebay.Engine, sim: Callable[[int], SimArray], data: tuple[Path, bytes]
) -> None:
    path, bytes_ = data
    with engine.open(path) as file:
        for offset, size in [(0, None), (12_345, 1_000_000), (len(bytes_) - 1, 1)]:
            count = len(bytes_) - offset if size is None else size
            targets: list[Any] = [sim(count), sim(count), sim(count)]
            assert file.read_into_all(targets, offset, size=size) == count
            for target in targets:
                assert target.tobytes() == bytes_[offset : offset + count]
        both: list[Any] = [sim(len(bytes_) + 5), sim(len(bytes_) + 5)]
        assert file.read_into_all(both, exact=False) == len(bytes_)
        with pytest.raises(forebay.EndOfFile):
            file.read_into_all(both)
        only: list[Any] = [sim(100)]
        assert file.read_into_all(only) == 100 and only[0].tobytes() == bytes_[:100]
        for wrong, says in [
            ([], "needs memory on GPUs"),
            ([sim(10), bytearray(10)], "needs memory on GPUs"),
            ([sim(10), sim(11)], "differ in length"),
        ]:
            with pytest.raises(forebay.RequestError, match=says):
                file.read_into_all(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="list"):
            file.read_into(both)
        places = {"offsets": [10, 0], "lengths": [1000, 500], "at": [0, 2000]}
        result = engine.read_many_to_all(files=file, targets=both, **places)
        assert result.counts == [1000, 500] and result.report()["bytes"] == 1500
        for target in both:
            got = target.tobytes()
            assert got[:1000] == bytes_[10:1010] and got[2000:2500] == bytes_[:500]


class Watched:
    """A file that keeps the transfers that were started."""

    def __init__(self, file: forebay.File) -> None:
        self.file = file
        self.transfers: list[forebay.Transfer] = []

    def start_write_from(self, *places: Any, **options: Any) -> forebay.Transfer:
        self.transfers.append(self.file.start_write_from(*places, **options))
        return self.transfers[-1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


@pytest.mark.parametrize("direct", [True, False])
def test_large_places_that_are_synced_bypass_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool
) -> None:
    if not direct:
        monkeypatch.setenv("FOREBAY_DIRECT_IO", "off")
    engine = forebay.Engine()
    source, nbytes = tmp_path / "source", (16 << 20) + 5
    source.write_bytes(content(nbytes))
    gpu, small = SimArray(engine.allocate(nbytes, "sim")), SimArray(engine.allocate(5, "sim"))
    with engine.open(source) as file:
        file.read_into(gpu)
        file.read_into(small)
    is_staged = False
    with engine.open(tmp_path / "probe", "w") as file, suppress(forebay.RouteUnavailable):
        file.write_from(gpu, size=1 << 20, route="staged")
        is_staged = True
    assert direct or not is_staged
    if direct and not is_staged:
        pytest.skip("no O_DIRECT here")
    expected = bytes(3) + source.read_bytes() * 2 + small.tobytes()
    places = [(3, nbytes, gpu), (3 + nbytes, nbytes, gpu), (3 + 2 * nbytes, 5, small)]
    for sync in (True, False):
        with engine.open(tmp_path / f"{sync}", "w") as file:
            watched: Any = Watched(file)
            put(watched, places, sync)
            parts = [part for one in watched.transfers for part in one.report()["routes"]]
            staged = sum(part["bytes"] for part in parts if part["route"] == "staged")
            assert (staged > 2 * nbytes - 4 * 4096) == (is_staged and sync) == (staged > 0)
        assert (tmp_path / f"{sync}").read_bytes() == expected
        with engine.open(tmp_path / "host", "w") as file:
            put(file, [(0, nbytes, content(nbytes))], sync)
        assert (tmp_path / "host").read_bytes() == content(nbytes)


class Full(Watched):
    """Fails to start the second transfer."""

    def start_write_from(self, *places: Any, **options: Any) -> forebay.Transfer:
        if self.transfers:
            raise OSError(errno.ENOSPC, "full")
        return super().start_write_from(*places)


def test_no_place_is_written_on_after_an_error(
    slow_gpu: forebay.Engine, tmp_path: Path
) -> None:
    nbytes = 16 << 20
    gpu = SimArray(slow_gpu.allocate(nbytes, "sim:bandwidth=1MB/s"))
    with slow_gpu.open(tmp_path / "x", "w") as file:
        full: Any = Full(file)
        with pytest.raises(OSError, match="full"):
            put(full, [(0, nbytes, gpu), (nbytes, nbytes, gpu)], sync=True)
        assert full.transfers[0].done() and full.transfers[0].cancelled()
