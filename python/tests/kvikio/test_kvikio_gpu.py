"""KvikIO's calls to and from the simulated GPU."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import forebay.kvikio as kvikio
import pytest
from arrays import Exchange, Interface, SimArray
from conftest import content

Data = tuple[Path, bytes]
LEN = 1_000_000


def sim_array(nbytes: int = LEN) -> SimArray:
    return SimArray(forebay.default_engine().allocate(nbytes, "sim"))


@pytest.mark.parametrize(
    "shown",
    [lambda array: array, Interface, Exchange, lambda array: array.buffer],
    ids=["array", "interface", "dlpack", "buffer"],
)
def test_arrays_on_a_gpu_are_read_and_written(
    data: Data, tmp_path: Path, shown: Callable[[SimArray], Any]
) -> None:
    path, bytes_ = data
    array, copy = sim_array(), tmp_path / "copy"
    with kvikio.CuFile(path) as file, kvikio.CuFile(copy, "w+") as written:
        assert file.read(shown(array), file_offset=4097) == LEN
        assert array.tobytes() == bytes_[4097 : 4097 + LEN]
        assert written.pwrite(shown(array), 1000, 5).get() == 1000
    assert copy.read_bytes() == bytes(5) + bytes_[4097:5097]


def test_raw_calls_begin_where_dev_offset_says(data: Data, tmp_path: Path) -> None:
    path, bytes_ = data
    array = sim_array(1000)
    with kvikio.CuFile(path) as file, kvikio.CuFile(tmp_path / "copy", "w") as copy:
        assert file.raw_read(array) == 1000
        assert file.raw_read(array, 10, 500, 100) == 10
        assert file.raw_read(array, None, 7, 900) == 100
        assert copy.raw_write(array, 20, 0, 95) == 20
        assert copy.raw_write(array, None, 20, 998) == 2
    expected = bytes_[:100] + bytes_[500:510] + bytes_[110:900] + bytes_[7:107]
    assert array.tobytes() == expected
    assert (tmp_path / "copy").read_bytes() == expected[95:115] + expected[998:]


@pytest.mark.parametrize("arguments", [(10, 0, 995), (None, 0, 1001), (1001, 0, 0)])
def test_raw_calls_stay_within_the_memory(data: Data, arguments: tuple[Any, ...]) -> None:
    with kvikio.CuFile(data[0]) as file, pytest.raises(ValueError, match="1000"):
        file.raw_read(sim_array(1000), *arguments)


def test_an_array_with_gaps_is_not_divided(data: Data) -> None:
    gaps = Interface(sim_array(1000), shape=(10, 5), strides=(10, 1))
    with kvikio.CuFile(data[0]) as file:
        for offset in (0, 2):
            with pytest.raises(ValueError, match="not contiguous"):
                file.raw_read(gaps, 10, 0, offset)


def test_memory_without_an_interface_is_not_divided(data: Data) -> None:
    array = sim_array(1000)
    with kvikio.CuFile(data[0]) as file:
        assert file.raw_read(Exchange(array), 10) == 10
        with pytest.raises(ValueError, match="slice"):
            file.raw_read(Exchange(array), 10, 0, 5)


def test_calls_on_a_stream_report_their_bytes(data: Data, tmp_path: Path) -> None:
    path, bytes_ = data
    array = sim_array()
    with kvikio.CuFile(path) as file, kvikio.CuFile(tmp_path / "copy", "w") as copy:
        begun = file.raw_read_async(array, 0, LEN - 8, 3, 8)
        assert isinstance(begun, kvikio.IOFutureStream)
        assert begun.check_bytes_done() == LEN - 8
        assert copy.raw_write_async(array, 0, 100, 0, 8).check_bytes_done() == 100
        failing = file.raw_read_async(array, 0, file_offset=len(bytes_) - 5)
        with pytest.raises(EOFError):
            failing.check_bytes_done()
    assert array.tobytes()[8:] == bytes_[3 : 3 + LEN - 8]
    assert (tmp_path / "copy").read_bytes() == bytes_[3:103]


def test_a_future_keeps_the_memory_and_the_file(data: Data) -> None:
    path, bytes_ = data
    array = sim_array(len(bytes_))
    kept = weakref.ref(array)
    begun = kvikio.CuFile(path).pread(array)
    buffer = array.buffer
    del array
    gc.collect()
    assert begun.get() == len(bytes_)
    assert buffer.tobytes() == bytes_
    gc.collect()
    assert kept() is None


def test_a_file_that_is_closed_meanwhile_is_read_to_the_end(data: Data) -> None:
    path, bytes_ = data
    target = bytearray(len(bytes_))
    with kvikio.CuFile(path) as file:
        begun = [file.pread(memoryview(target)[at : at + 100_000], None, at)
                 for at in range(0, 3_000_000, 100_000)]  # fmt: skip
    path.unlink()
    assert file.closed and [one.get() for one in begun] == [100_000] * 30
    assert target[:3_000_000] == bytes_[:3_000_000]


def test_a_future_is_the_engine_s_as_well(data: Data) -> None:
    path, bytes_ = data
    with kvikio.CuFile(path) as file:
        begun = file.pread(bytearray(len(bytes_)))
        assert begun.transfer.result(60) == len(bytes_)
        assert begun.done() and begun.transfer.report()["bytes"] == len(bytes_)


def test_many_threads_use_one_file(tmp_path: Path) -> None:
    path, bytes_ = tmp_path / "data", content(800_000, 5)
    with kvikio.CuFile(path, "w+") as file:

        def work(at: int) -> None:
            part = bytes_[at : at + 100_000]
            assert file.write(part, file_offset=at) == 100_000
            target = bytearray(100_000)
            assert file.read(target, file_offset=at) == 100_000
            good.append(target == part)

        good: list[bool] = []
        threads = [threading.Thread(target=work, args=(at,)) for at in range(0, 800_000, 100_000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert good == [True] * 8 and path.read_bytes() == bytes_


def test_numpy_reads_into_arrays_like_one_on_a_gpu(data: Data) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    import forebay.kvikio.numpy as kvikio_numpy

    class Like:
        """Makes arrays on the GPU, as cupy's would."""

        def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
            assert func is np.empty_like
            (count,), kind = kwargs["shape"], kwargs["dtype"]
            return sim_array(count * kind.itemsize)

    path, bytes_ = data
    read = kvikio_numpy.fromfile(path, "i4", offset=1, like=Like())
    assert isinstance(read, SimArray) and read.tobytes() == bytes_[1:]
    wrapped = np.fromfile(path, "u1", 10, like=kvikio_numpy.LikeWrapper(Like()))
    assert wrapped.tobytes() == bytes_[:10]
