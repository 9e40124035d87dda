"""Tensors that are loaded from files and saved to them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import content
from tensors import device_or_skip, torch_or_skip

torch = torch_or_skip()

import forebay.torch  # noqa: E402  # after it is known that there is a torch

DTYPES = [torch.uint8, torch.bool, torch.bfloat16, torch.float16, torch.float32, torch.int64]


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> str:
    return device_or_skip(request.param)


def some_tensors(device: str) -> dict[str, Any]:
    made = {}
    for number, dtype in enumerate(DTYPES + [torch.float8_e4m3fn, torch.complex64]):
        count = 1000 * number + 17
        raw = bytearray(content(count * dtype.itemsize, seed=number))
        if dtype == torch.bool:
            raw = bytearray(byte & 1 for byte in raw)
        made[str(dtype)] = torch.frombuffer(raw, dtype=dtype).to(device)
    made["empty"] = torch.empty((3, 0), device=device)
    made["scalar"] = torch.tensor(3.5, device=device)
    return made


def bytes_of(tensor: Any) -> bytes:
    flat = tensor.detach().cpu().reshape(-1)
    return bytes(flat.view(torch.uint8).tolist()) if flat.numel() else b""


def test_saved_tensors_of_any_type_are_loaded(tmp_path: Path, device: str) -> None:
    saved = some_tensors(device)
    written = forebay.torch.save(tmp_path / "file", saved)
    raw = (tmp_path / "file").read_bytes()
    assert raw == b"".join(bytes_of(tensor) for tensor in saved.values())
    assert written == len(raw)
    loaded = {name: torch.zeros_like(tensor) for name, tensor in saved.items()}
    assert forebay.torch.load_into(tmp_path / "file", loaded) == len(raw)
    assert all(bytes_of(loaded[name]) == bytes_of(saved[name]) for name in saved)


def test_a_new_tensor_has_the_bytes_at_its_offset(tmp_path: Path, device: str) -> None:
    raw = content(8192)
    (tmp_path / "file").write_bytes(raw)
    path = tmp_path / "file"
    tensor = forebay.torch.load(path, torch.int16, (10, 3), device, offset=100)
    assert tensor.shape == (10, 3) and tensor.dtype == torch.int16
    assert tensor.device.type == device and bytes_of(tensor) == raw[100:160]
    flat = forebay.torch.load(str(path), torch.float64, device=device, offset=8192 - 800)
    assert flat.shape == (100,) and bytes_of(flat) == raw[-800:]
    assert forebay.torch.load(path, torch.uint8, 5, device).shape == (5,)
    assert forebay.torch.load(path, torch.uint8, (2, 0), device).shape == (2, 0)


def test_offsets_are_given_as_the_tensors_are(tmp_path: Path) -> None:
    path = tmp_path / "file"
    a, b = torch.arange(4, dtype=torch.uint8), torch.arange(10, 13, dtype=torch.uint8)
    assert forebay.torch.save(path, {"a": a, "b": b}, {"b": 0, "a": 5}) == 7
    assert path.read_bytes() == bytes([10, 11, 12, 0, 0, 0, 1, 2, 3])
    into = [torch.zeros(2, dtype=torch.uint8), torch.zeros(2, dtype=torch.uint8)]
    forebay.torch.load_into(path, into, [7, 1])
    assert [tensor.tolist() for tensor in into] == [[2, 3], [11, 12]]
    forebay.torch.load_into(path, into, 5)  # the first one, and then without a gap
    assert [tensor.tolist() for tensor in into] == [[0, 1], [2, 3]]
    forebay.torch.load_into(path, into[0], [1])
    assert into[0].tolist() == [11, 12]


def test_whole_numbers_of_other_libraries_are_numbers(tmp_path: Path) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    path, tensor = tmp_path / "file", torch.arange(20, dtype=torch.uint8)
    for number in [np.int64, np.array, lambda n: torch.tensor(n)]:
        forebay.torch.save(path, [tensor, tensor], [number(0), number(20)])
        forebay.torch.save(path, tensor, number(0))
        assert path.read_bytes() == bytes(range(20))
        for shape in [number(3), [number(3)], (number(1), number(3))]:
            found = forebay.torch.load(path, torch.uint8, shape, "cpu", offset=number(5))
            assert found.flatten().tolist() == [5, 6, 7]
        into = {"a": torch.zeros(2, dtype=torch.uint8)}
        forebay.torch.load_into(path, into, {"a": number(7)})
        assert into["a"].tolist() == [7, 8]
    at = forebay.torch.TensorAt(None, 0, torch.uint8, (np.int32(70_000), np.int32(70_000)))
    assert at.nbytes == 70_000**2
    for wrong in [1.5, "1"]:
        with pytest.raises(TypeError):
            forebay.torch.save(path, tensor, wrong)
        with pytest.raises(TypeError):
            forebay.torch.load(path, torch.uint8, offset=wrong)


def test_objects_that_are_no_tensors_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"as it was")
    for given, says in [
        ({"state": {"a": torch.zeros(1)}}, "tensor `state` is of type `dict`"),
        ({"step": 5}, "tensor `step` is of type `int`"),
        ({"name": "x"}, "tensor `name` is of type `str`"),
        (5, "cannot be `int`"),
        (None, "cannot be `NoneType`"),
    ]:
        for save in (forebay.torch.save, forebay.torch.save_checkpoint):
            with pytest.raises(TypeError, match=says):
                save(path, given)
    with pytest.raises(TypeError, match="1 is of type `NoneType`"):
        forebay.torch.save(path, [torch.zeros(1), None])
    for given in (torch.eye(2).to_sparse(), torch.eye(2).to_sparse_csr()):
        with pytest.raises(ValueError, match="sparse.*to_dense"):
            forebay.torch.save(path, given)
        with pytest.raises(ValueError, match="sparse.*to_dense"):
            forebay.torch.save_checkpoint(path, {"a": given})
        with forebay.open(path) as file, pytest.raises(BufferError, match="to_dense"):
            file.read_into(given)
    assert path.read_bytes() == b"as it was"


def test_a_file_that_was_longer_is_cut(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content(100))
    forebay.torch.save(tmp_path / "file", torch.zeros(3, dtype=torch.uint8), sync=True)
    assert (tmp_path / "file").read_bytes() == bytes(3)
    assert forebay.torch.save(tmp_path / "file", []) == 0
    assert (tmp_path / "file").read_bytes() == b""


def test_a_file_that_ends_too_early_is_reported(tmp_path: Path, device: str) -> None:
    (tmp_path / "file").write_bytes(content(100))
    with pytest.raises(forebay.EndOfFile, match="file"):
        forebay.torch.load(tmp_path / "file", torch.uint8, 101, device)
    with pytest.raises(forebay.EndOfFile):
        forebay.torch.load_into(tmp_path / "file", [torch.zeros(9), torch.zeros(99)])
    for offset in [1, 101]:
        with pytest.raises(ValueError, match="not a multiple of 4, the size of"):
            forebay.torch.load(tmp_path / "file", torch.float32, offset=offset)
    with pytest.raises(FileNotFoundError):
        forebay.torch.load(tmp_path / "missing", torch.uint8)


@pytest.mark.parametrize(
    ("tensors", "offsets", "error", "says"),
    [
        ({"w": torch.zeros(4, 4).t()}, None, ValueError, "tensor `w` is not contiguous"),
        ([torch.zeros(2), torch.zeros(4)[::2]], None, ValueError, "tensor 1 is not contiguous"),
        (torch.eye(2).to_sparse(), None, ValueError, "sparse"),
        ([torch.zeros(1), "no tensor"], [0, 4], TypeError, "tensor 1 is of type `str`"),
        ([torch.zeros(1)], [0, 4], ValueError, "2 numbers for 1 tensors"),
        ({"a": torch.zeros(1)}, {"b": 0}, ValueError, "no number for tensor `a`"),
        ({"a": torch.zeros(1)}, [0], TypeError, "by the same names"),
        ([torch.zeros(1)], {"a": 0}, TypeError, "by name"),
        (torch.zeros(1), -1, ValueError, "cannot be negative: -1"),
    ],
)
def test_invalid_tensors_are_refused_before_the_file_is_touched(
    tmp_path: Path, tensors: Any, offsets: Any, error: type[Exception], says: str
) -> None:
    (tmp_path / "file").write_bytes(b"as it was")
    with pytest.raises(error, match=says):
        forebay.torch.load_into(tmp_path / "file", tensors, offsets)
    with pytest.raises(error, match=says):
        forebay.torch.save(tmp_path / "file", tensors, offsets)
    assert (tmp_path / "file").read_bytes() == b"as it was"


def test_tensors_that_overlap_in_a_file_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="overlap at offset 7"):
        forebay.torch.save(tmp_path / "file", [torch.zeros(1), torch.zeros(1)], [4, 7])
    assert not (tmp_path / "file").exists()


def test_autograd_notices_that_a_value_has_changed(tmp_path: Path) -> None:
    if not hasattr(torch.autograd.graph, "increment_version"):
        pytest.skip("this torch has no function for changes")
    weight = torch.ones(4, requires_grad=True)
    forebay.torch.save(tmp_path / "file", weight)
    squared = (weight * weight).sum()
    forebay.torch.load_into(tmp_path / "file", weight)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.backward()


def test_views_of_one_tensor_are_filled_in_their_places(tmp_path: Path) -> None:
    forebay.torch.save(tmp_path / "file", torch.arange(12, dtype=torch.int32))
    whole = torch.zeros(3, 4, dtype=torch.int32)
    forebay.torch.load_into(tmp_path / "file", {"b": whole[2], "a": whole[0]})
    assert whole.tolist() == [[4, 5, 6, 7], [0, 0, 0, 0], [0, 1, 2, 3]]


def test_a_tensor_without_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(content(4096))
    freed = torch.empty(1024, dtype=torch.float32)
    freed.untyped_storage().resize_(0)  # as a model that is spread over GPUs does with its parts
    with forebay.open(tmp_path / "file", "r+") as file:
        for call in [file.read_into, file.write_from, file.start_read_into]:
            with pytest.raises(BufferError, match="it was freed"):
                call(freed)


def test_a_tensor_may_get_other_memory_while_bytes_move(tmp_path: Path) -> None:
    path, length = tmp_path / "file", 64 << 20
    path.write_bytes(bytes(length))
    with forebay.open(path) as file:
        for _ in range(5):
            tensor = torch.ones(length, dtype=torch.uint8)
            address = tensor.data_ptr()
            moving = file.start_read_into(tensor)
            tensor.data = torch.empty(0, dtype=torch.uint8)  # as `module.half()` does
            is_there = is_mapped(address)
            assert is_there or moving.done(), "it was given back under the transfer"
            assert moving.result(60) == length


def is_mapped(address: int) -> bool:
    with open("/proc/self/maps") as file:
        ranges = (line.split()[0].split("-") for line in file)
        return any(int(first, 16) <= address < int(end, 16) for first, end in ranges)


def test_an_error_names_what_was_tried_the_path_the_cause_and_the_remedy(tmp_path: Path) -> None:
    path, missing, folder = tmp_path / "file", tmp_path / "missing", tmp_path / "folder"
    path.write_bytes(bytes(100))
    folder.mkdir()

    def records(path: Path, dtype: Any = torch.int32) -> None:
        forebay.torch.RecordDataset(path, 5, dtype, "cpu", batch_size=1)

    def loads(path: Path, dtype: Any = torch.int32) -> None:
        forebay.torch.load(path, dtype, (26,), "cpu")

    def saves(path: Path) -> None:
        forebay.torch.save(path, torch.zeros(3))

    calls: list[tuple[Callable[..., None], Path, type[Exception], str]] = [
        (records, missing, FileNotFoundError, "cannot open `.*missing`: No such.*spelling"),
        (records, folder, IsADirectoryError, "cannot open `.*folder`.*not a file.*give a regular"),
        (loads, missing, FileNotFoundError, "cannot open `.*missing`: No such.*spelling"),
        (loads, folder, IsADirectoryError, "cannot open `.*folder`.*not a file.*give a regular"),
        (loads, path, EOFError, r"cannot read `.*file` at 0\+104.*ended after 100.*request fewer"),
        (saves, missing / "file", FileNotFoundError, "cannot open the folder of `.*spelling"),
        (saves, folder, IsADirectoryError, "cannot replace `.*folder`: it is a folder.*give"),
    ]
    for call, named, kind, says in calls:
        with pytest.raises(kind, match=says) as raised:
            call(named)
        assert isinstance(raised.value, forebay.Error) and raised.value.filename
    for call in [records, loads]:
        for dtype in ["int32", int]:
            with pytest.raises(TypeError, match="`dtype` cannot be `.*int.*such as `torch.float32`"):
                call(path, dtype)
    assert path.read_bytes() == bytes(100)
