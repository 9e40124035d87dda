"""What fails, in the classes that either library's users catch."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path

import forebay
import forebay.kvikio as kvikio
import pytest

Data = tuple[Path, bytes]


def test_a_missing_file_is_both_kinds_of_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        kvikio.CuFile(tmp_path / "none")
    error = caught.value
    assert isinstance(error, RuntimeError) and isinstance(error, forebay.Error)
    assert error.errno == errno.ENOENT and error.filename == str(tmp_path / "none")
    assert str(tmp_path / "none") in str(error) and "spelling" in str(error)


def test_an_early_end_is_both_kinds_of_error(data: Data) -> None:
    path, bytes_ = data
    with kvikio.CuFile(path) as file:
        for read in (file.read, lambda *arguments: file.pread(*arguments).get()):
            with pytest.raises(forebay.EndOfFile) as caught:
                read(bytearray(10), 10, len(bytes_) - 4)
            error = caught.value
            assert isinstance(error, RuntimeError) and isinstance(error, EOFError)
            assert (error.bytes, error.offset, error.length) == (4, len(bytes_) - 4, 10)


def test_a_number_that_nothing_holds_is_an_overflow(data: Data) -> None:
    with kvikio.CuFile(data[0]) as file:
        for arguments in [(1 << 64,), (1, 1 << 64), (10**5000,), (1, -1)]:
            with pytest.raises(OverflowError):
                file.read(bytearray(10), *arguments)


def test_an_error_reaches_another_process_whole(data: Data) -> None:
    with kvikio.CuFile(data[0]) as file, pytest.raises(forebay.EndOfFile) as caught:
        file.read(bytearray(10), 10, len(data[1]))
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value) and str(again) == str(caught.value)
    assert again.bytes == 0 and again.filename == caught.value.filename


def test_a_failed_open_leaves_no_descriptor(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        with pytest.raises(IsADirectoryError):
            kvikio.CuFile(tmp_path)
        with pytest.raises(RuntimeError):
            kvikio.CuFile("/dev/null")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 1


def test_an_unclosed_file_is_closed(data: Data) -> None:
    file = kvikio.CuFile(data[0])
    entry = Path(f"/proc/self/fd/{file.fileno()}")
    assert entry.resolve() == data[0]
    del file
    assert not entry.exists() or entry.resolve() != data[0]


@pytest.mark.parametrize(
    "open_it",
    [
        lambda: kvikio.RemoteFile.open("s3://bucket/key"),
        lambda: kvikio.RemoteFile.open_http("http://host/file"),
        lambda: kvikio.RemoteFile.open_s3("bucket", "key"),
        lambda: kvikio.RemoteFile.open_s3_url("s3://bucket/key"),
        lambda: kvikio.RemoteFile.open_s3_public("s3://bucket/key"),
        lambda: kvikio.RemoteFile.open_s3_presigned_url("https://host/key"),
        lambda: kvikio.RemoteFile.open_webhdfs("http://host/webhdfs/v1/file"),
        lambda: kvikio.infer_remote_endpoint_type("http://host/file"),
        lambda: kvikio.RemoteFile(None),
    ],
)
def test_remote_files_are_refused_in_words(open_it: object) -> None:
    assert callable(open_it)
    with pytest.raises(NotImplementedError, match="remote files are not offered") as caught:
        open_it()
    assert isinstance(caught.value, RuntimeError)


def test_a_refused_remote_file_is_named_without_other_arguments() -> None:
    with pytest.raises(NotImplementedError, match="cannot open `bucket/key`:"):
        kvikio.RemoteFile.open_s3("bucket", "key", 100)
    with pytest.raises(NotImplementedError, match="cannot open `http://host/file`:"):
        kvikio.RemoteFile.open_http("http://host/file", nbytes=None)


def test_codecs_are_refused_in_words() -> None:
    with pytest.raises(ImportError, match=r"kvikio\.numcodecs"):
        import forebay.kvikio.numcodecs  # noqa: F401


def test_registering_takes_memory_and_nothing_else() -> None:
    kvikio.memory_register(bytearray(4))
    kvikio.memory_deregister(forebay.default_engine().allocate(4, "sim"))
    for call in (kvikio.memory_register, kvikio.memory_deregister):
        with pytest.raises(TypeError, match="give an array or a buffer"):
            call(5)
    with pytest.raises(TypeError):
        kvikio.stream_register("stream", 0)  # type: ignore[arg-type]


def test_a_map_never_writes_beyond_the_memory(data: Data) -> None:
    mapped = kvikio.Mmap(data[0])
    with pytest.raises(ValueError, match="`size`"):
        mapped.read(bytearray(10))
    with mapped:
        assert mapped.read(bytearray(10), 10) == 10
    assert mapped.closed()


def test_errors_of_maps_have_the_words_of_kvikio(data: Data) -> None:
    """Callers match on these words: they are those of KvikIO 26.10."""
    path, bytes_ = data
    end = len(bytes_)
    closed = kvikio.Mmap(path)
    closed.close()
    part = kvikio.Mmap(path, "r", 100, 100)
    cases = [
        (lambda: closed.read(bytearray(4), 4), "Cannot read from a closed MmapHandle"),
        (lambda: part.read(bytearray(4), 4, end + 1), "Offset is past the end of file"),
        (lambda: part.read(bytearray(99), 99, 150), "Read is out of bound"),
        (lambda: kvikio.Mmap(path, "r", None, end), "Offset must be less than the file size"),
        (lambda: kvikio.Mmap(path, "r", end, 1), "Mapped region is past the end of file"),
        (lambda: kvikio.Mmap(path, "r", 0), "Mapped region should not be zero byte"),
        (lambda: kvikio.defaults.set("task_size", 0), "must be a positive integer"),
    ]
    for call, words in cases:
        with pytest.raises((IndexError, ValueError, RuntimeError), match=words):
            call()


def test_a_drive_is_reported(data: Data) -> None:
    known = kvikio.block_device_info(data[0])
    with forebay.open(data[0]) as file:
        assert known == file.about()
    with pytest.raises(FileNotFoundError):
        kvikio.block_device_info(data[0].parent / "none")


def test_a_file_of_numbers_is_read_by_its_descriptor(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    from forebay.kvikio.numpy import fromfile, tofile

    path = tmp_path / "numbers"
    path.write_bytes(bytes(range(80)))
    with open(path, "rb") as file:
        path.rename(tmp_path / "moved")
        path.write_bytes(bytes(80))
        assert fromfile(file, "u1", np.int64(3), offset=np.int64(5)).tolist() == [5, 6, 7]
    with open(path, "wb") as file:
        path.unlink()
        tofile(np.arange(5, dtype="u1"), file)
        assert os.fstat(file.fileno()).st_size == 5
    for dtype in ["U", "S", "V", str]:
        with pytest.raises(ValueError, match="no bytes"):
            fromfile(tmp_path / "moved", dtype)


def test_whole_numbers_of_numpy_are_numbers(data: Data) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    path, bytes_ = data
    target = bytearray(10)
    for number in (np.int64, np.array):
        with kvikio.CuFile(path) as file:
            assert file.read(target, number(5), number(7), number(4096)) == 5
            assert target[:5] == bytes_[7:12]
            assert kvikio.get_page_cache_info(np.int64(file.fileno()), number(0), number(1))[1] == 1
        with kvikio.Mmap(path, "r", number(100), number(50)) as mapped:
            assert mapped.read(target, number(10), number(60)) == 10 and target == bytes_[60:70]
        with kvikio.defaults.set({"num_threads": number(3), "http_status_codes": [number(500)]}):
            assert kvikio.defaults.get("num_threads") == 3
    with pytest.raises(TypeError):
        kvikio.defaults.set("http_status_codes", [1.5])
