"""Targets and sources: contiguous memory, and nothing else."""

from __future__ import annotations

import array
import ctypes
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import pytest
from arrays import Exchange, Interface, SimArray
from conftest import content

Data = tuple[Path, bytes]
Sim = Callable[[int], SimArray]

LEN = 1_000_000


@pytest.mark.parametrize(
    "make",
    [
        bytearray,
        lambda n: memoryview(bytearray(n)),
        lambda n: array.array("d", bytes(n)),
        lambda n: (ctypes.c_char * n)(),
        lambda n: mmap.mmap(-1, n),
    ],
    ids=["bytearray", "memoryview", "array", "ctypes", "mmap"],
)
def test_buffers_are_read_into_and_written_from(
    engine: forebay.Engine, data: Data, tmp_path: Path, make: Callable[[int], Any]
) -> None:
    path, bytes_ = data
    target = make(LEN)
    with engine.open(path) as file:
        assert file.read_into(target, 77) == LEN
    assert bytes(memoryview(target).cast("B")) == bytes_[77 : 77 + LEN]
    with engine.open(tmp_path / "copy", "w") as copy:
        assert copy.write_from(target) == LEN
    assert (tmp_path / "copy").read_bytes() == bytes_[77 : 77 + LEN]


def test_numpy_arrays_of_any_type_and_order(engine: forebay.Engine, data: Data) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    path, bytes_ = data
    with engine.open(path) as file:
        for dtype in ["u1", ">i4", "f8", "c16", "V7", "S3", "M8[s]"]:
            target = np.zeros(1000, dtype)
            file.read_into(target, 5)
            assert target.tobytes() == bytes_[5 : 5 + target.nbytes], dtype
        by_columns = np.zeros((10, 20), "i4", order="F")
        file.read_into(by_columns)
        assert by_columns.tobytes(order="A") == bytes_[:800]
        part = np.zeros((100, 8), "u1")[10:20]
        file.read_into(part)
        assert part.tobytes() == bytes_[:80] and not part.base[:10].any()


def test_scattered_memory_is_refused(engine: forebay.Engine, data: Data) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    path, _ = data
    wide = np.zeros((10, 10), "u1")
    with engine.open(path) as file:
        for scattered in [wide[:, 2], wide[::2], wide[:, 1:3]]:
            with pytest.raises(BufferError, match="not contiguous"):
                file.read_into(scattered)
        with pytest.raises(BufferError, match="not contiguous"):
            file.read_into(memoryview(bytearray(10))[::2])
    assert not wide.any()


def test_read_only_memory_is_no_target(engine: forebay.Engine, data: Data, sim: Sim) -> None:
    path, _ = data
    address = sim(10).buffer.address
    read_only = Interface(sim(10), data=(address, True))
    with engine.open(path) as file:
        for target in [b"bytes", memoryview(b"bytes"), read_only]:
            with pytest.raises(BufferError, match="read-only"):
                file.read_into(target)


@pytest.mark.parametrize("target", [None, "text", 5, [1, 2], object(), (1, 2), (1, 2, 3, 4)])
def test_objects_without_bytes_are_refused(engine: forebay.Engine, data: Data, target: Any) -> None:
    path, _ = data
    with engine.open(path) as file, pytest.raises(TypeError):
        file.read_into(target)


def test_texts_of_any_length_are_no_bytes(engine: forebay.Engine, data: Data) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    if not hasattr(np, "dtypes") or not hasattr(np.dtypes, "StringDType"):
        pytest.skip("numpy is older than 2")
    import forebay.kvikio as kvikio
    from forebay.kvikio.numpy import fromfile, tofile

    path, bytes_ = data
    texts = np.array(["x" * 100, "y" * 100], np.dtypes.StringDType())
    with engine.open(path, "r+") as file, kvikio.CuFile(path, "r+") as other:
        for call in [
            lambda: file.read_into(texts),
            lambda: file.write_from(texts),
            lambda: file.start_read_into(texts).result(),
            lambda: file.start_write_from(texts).result(),
            lambda: file.readv([(0, 16, texts)]),
            lambda: file.writev([(0, 16, texts)]),
            lambda: engine.read_many(
                files=file, offsets=[0], lengths=[16], target=texts, at=[0]
            ),
            lambda: engine.write_many([(file, 0, 16, texts)]),
            lambda: other.read(texts),
            lambda: other.pwrite(texts),
            lambda: fromfile(path, np.dtypes.StringDType()),
            lambda: tofile(texts, path.parent / "other"),
        ]:
            with pytest.raises(BufferError, match="StringDType"):
                call()
    assert list(texts) == ["x" * 100, "y" * 100] and path.read_bytes() == bytes_
    # As long as numpy itself refuses them as fields, an array of records cannot hold them.
    try:
        records = np.zeros(3, [("a", "i4"), ("b", np.dtypes.StringDType())])
    except TypeError:
        return
    with engine.open(path, "r+") as file:
        for call in [lambda: file.read_into(records), lambda: file.write_from(records)]:
            with pytest.raises(BufferError, match="StringDType"):
                call()


def test_types_without_a_format_whose_bytes_are_values_are_moved(
    engine: forebay.Engine, data: Data
) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    path, bytes_ = data
    for dtype in ["M8[ns]", "m8[s]", [("when", "M8[us]"), ("what", "f4")], "U3", "S5", "V7"]:
        array = np.zeros(10, dtype)
        with engine.open(path) as file:
            assert file.read_into(array) == array.nbytes
        assert array.tobytes() == bytes_[: array.nbytes]


def test_pointers_are_no_bytes(engine: forebay.Engine, data: Data) -> None:
    texts = (ctypes.c_char_p * 4)()
    pointers = (ctypes.POINTER(ctypes.c_int) * 4)()
    with engine.open(data[0]) as file:
        for target in texts, pointers, (ctypes.c_void_p * 4)():
            with pytest.raises(BufferError, match="addresses") as caught:
                file.read_into(target, 7)
            assert caught.value.__notes__ == [f'for "{data[0]}" at offset 7']
            with pytest.raises(BufferError, match="addresses") as caught:
                engine.read_many([(file, 0, 8, bytearray(8)), (file, 0, 8, target)])
            assert caught.value.__notes__ == ["in `requests[1]`"]
    assert list(texts) == [None] * 4


def test_objects_of_python_are_no_bytes(engine: forebay.Engine, data: Data) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    path, bytes_ = data
    named = np.zeros(3, [("O", "i4"), ("xO", "i4")])
    with engine.open(path, "r+") as file:
        assert file.read_into(named) == named.nbytes and named.tobytes() == bytes_[:24]
        for dtype in [
            "O",
            [("a", "i4"), ("b", "O")],
            [("a", "i4"), ("b", [("c", "O", (2, 3))])],
            [("when", "M8[s]"), ("b", "O")],  # without a format
        ]:
            objects = np.zeros(3, dtype)
            before = objects.copy()
            for refused in [file.read_into, file.write_from, file.start_write_from]:
                with pytest.raises(BufferError, match="Python objects"):
                    refused(objects)
            assert (objects == before).all()
    assert path.read_bytes() == bytes_


def test_freed_memory_is_refused(engine: forebay.Engine, data: Data) -> None:
    path, _ = data
    freed = Freed()
    with engine.open(path) as file:
        for call in [file.read_into, file.write_from, file.start_read_into]:
            with pytest.raises(BufferError, match="it was freed"):
                call(freed)


class Freed:
    """A tensor, as torch shows one whose storage was given back."""

    is_cuda = False
    device = type("Device", (), {"type": "cpu"})()

    def _zero(self) -> int:
        return 0

    data_ptr = _zero

    def _no(self) -> bool:
        return False

    is_conj = is_neg = _no

    def is_contiguous(self) -> bool:
        return True

    def numel(self) -> int:
        return 1_000_000

    def element_size(self) -> int:
        return 4


def test_more_bytes_than_the_memory_has_are_refused(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    target = bytearray(100)
    with engine.open(path) as file:
        with pytest.raises(ValueError, match="has 100 bytes"):
            file.read_into(target, size=101)
        assert file.read_into(target, size=10) == 10
        assert file.read_into(target, size=0) == 0
        with pytest.raises(ValueError, match="`size` cannot be `-1`"):
            file.read_into(target, size=-1)
    assert target == bytes_[:10] + bytes(90)


@pytest.mark.parametrize("kind", ["both", "interface", "dlpack 0", "dlpack 1", "buffer", "triple"])
def test_arrays_on_a_gpu(
    engine: forebay.Engine, data: Data, tmp_path: Path, sim: Sim, kind: str
) -> None:
    path, bytes_ = data
    array_ = sim(LEN)
    shown: Any = {
        "both": array_,
        "interface": Interface(array_),
        "dlpack 0": Exchange(array_, is_old=True),
        "dlpack 1": Exchange(array_),
        "buffer": array_.buffer,
        "triple": (array_.buffer.address, LEN, "sim:0"),
    }[kind]
    with engine.open(path) as file:
        assert file.read_into(shown, 99) == LEN
        assert array_.tobytes() == bytes_[99 : 99 + LEN]
        transfer = file.start_read_into(shown, 100)
        assert transfer.result(60) == LEN
    assert array_.tobytes() == bytes_[100 : 100 + LEN]
    with engine.open(tmp_path / "copy", "w") as copy:
        assert copy.write_from(shown) == LEN
    assert (tmp_path / "copy").read_bytes() == bytes_[100 : 100 + LEN]


def test_an_interface_says_how_its_elements_lie(
    engine: forebay.Engine, data: Data, sim: Sim
) -> None:
    path, bytes_ = data
    array_ = sim(800)
    with engine.open(path) as file:
        rows = Interface(array_, shape=(10, 20), typestr="<f4", strides=(80, 4))
        assert file.read_into(rows) == 800
        columns = Interface(array_, shape=(10, 20), typestr="<f4", strides=(4, 40))
        assert file.read_into(columns, 1) == 800
        assert array_.tobytes() == bytes_[1:801]
        empty = Interface(array_, shape=(0, 20), typestr="<f4", strides=(1, 1))
        assert file.read_into(empty) == 0
        for wrong in [
            {"shape": (10, 10), "typestr": "<f4", "strides": (80, 4)},
            {"shape": (5, 20), "typestr": "<f4", "strides": (-80, 4)},
            {"shape": (1 << 40, 1 << 40)},
            {"mask": array_},
            {"shape": (-5,)},
        ]:
            with pytest.raises((BufferError, ValueError)):
                file.read_into(Interface(array_, **wrong))
        for broken in [{"typestr": "f"}, {"data": None}, {"shape": "abc"}]:
            with pytest.raises((TypeError, ValueError)):
                file.read_into(Interface(array_, **broken))


def test_memory_beyond_its_allocation_is_refused(
    engine: forebay.Engine, data: Data, sim: Sim
) -> None:
    path, _ = data
    address = sim(4096).buffer.address
    with engine.open(path) as file:
        for triple in [
            (address, 1 << 40, "sim:0"),
            (1 << 20, 10, "sim:0"),
            (0, 10, "cpu"),
            ((1 << 64) - 5, 10, "cpu"),
            (address, 10, "sim:1"),
            (address, 10, "cuda:0"),
        ]:
            with pytest.raises((ValueError, forebay.Error)):
                file.read_into(triple)
        with pytest.raises(ValueError, match="`device` cannot be"):
            file.read_into((address, 10, "tpu"))


def test_a_gpu_array_that_is_freed_is_found_out(engine: forebay.Engine, data: Data) -> None:
    path, _ = data
    buffer = engine.allocate(100 << 20, "sim")
    address = buffer.address
    del buffer
    with engine.open(path) as file, pytest.raises(forebay.Error):
        file.read_into((address, 100 << 20, "sim:0"), exact=False)


def test_a_target_is_kept_while_bytes_move(data: Data, slow_gpu: forebay.Engine) -> None:
    path, bytes_ = data
    target = SimArray(slow_gpu.allocate(300_000, "sim"))
    before = sys.getrefcount(target)
    with slow_gpu.open(path) as file:
        transfer = file.start_read_into(target)
        assert sys.getrefcount(target) > before
        assert transfer.result(60) == 300_000
    assert sys.getrefcount(target) == before
    assert target.tobytes() == bytes_[:300_000]


def test_a_bytearray_cannot_be_resized_while_bytes_move(
    data: Data, slow_gpu: forebay.Engine, tmp_path: Path
) -> None:
    path, _ = data
    target = SimArray(slow_gpu.allocate(300_000, "sim"))
    host = bytearray(10)
    with slow_gpu.open(path) as file:
        moving = file.start_read_into(target)
        small = file.start_read_into(host)
        small.result(60)
        host.append(1)  # it has ended, and was queried
        moving.result(60)
    assert len(host) == 11


def test_a_buffer_is_an_array_to_others(engine: forebay.Engine, data: Data) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    path, bytes_ = data
    buffer = engine.read(path)
    assert buffer.nbytes == len(buffer) == len(bytes_) and buffer.device == "cpu"
    shown = np.from_dlpack(buffer)
    assert shown.dtype == np.uint8 and shown.tobytes() == bytes_
    assert np.frombuffer(buffer, np.uint8)[5] == bytes_[5]
    memoryview(buffer)[0] = bytes_[0] ^ 1
    assert shown[0] == bytes_[0] ^ 1
    del buffer
    assert shown[1:].tobytes() == bytes_[1:], "the array keeps the memory"
    assert not hasattr(engine.read(path), "__cuda_array_interface__")


def test_bytes_on_a_gpu_have_no_host_buffer(engine: forebay.Engine, data: Data) -> None:
    path, bytes_ = data
    buffer = engine.read(path, "sim")
    assert buffer.device == "sim:0" and buffer.tobytes() == bytes_
    with pytest.raises(BufferError, match="tobytes"):
        memoryview(buffer)
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(1, 0))


def test_content_differs_from_place_to_place() -> None:
    assert len(set(content(1000))) > 200
