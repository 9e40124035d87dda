"""What programs do with a model besides loading it whole: other indexes, threads, odd names."""

from __future__ import annotations

import json
import os
import pickle
import struct
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay.safetensors import (
    FormatError,
    _pages,
    iterate,
    load_file,
    load_model,
    safe_open,
    save_file,
)
from tensors import torch_or_skip

numpy = pytest.importorskip("numpy")

HOST: dict[str, Any] = {"framework": "numpy"}
MIB = 1 << 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """64 tensors of 1 MiB."""
    arrays = {f"t{n:02}": numpy.full(MIB // 4, n, "int32") for n in range(64)}
    save_file(arrays, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_an_index_without_a_prefix(path: Path) -> None:
    index = path.parent / "index.json"
    index.write_text(json.dumps({"weight_map": {"t01": path.name, "t02": path.name}}))
    assert sorted(load_file(index, **HOST)) == ["t01", "t02"]


def test_folders_with_one_model(path: Path) -> None:
    save_file({"t00": numpy.zeros(3)}, path.parent / "consolidated.safetensors")
    assert len(load_file(path.parent, **HOST)) == 64
    (snapshots := path.parent / "models--a--b" / "snapshots").mkdir(parents=True)
    (snapshots / "0123").symlink_to(path.parent)
    assert len(load_file(path.parent / "models--a--b", **HOST)) == 64


def test_files_without_a_selected_tensor_need_not_exist(path: Path) -> None:
    index = path.parent / "model.safetensors.index.json"
    weight_map = {"t01": path.name, "t02": path.name, "other": "absent.safetensors"}
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert list(load_file(path.parent, names="t*", **HOST)) == ["t01", "t02"]
    with pytest.raises(forebay.Error, match="absent"):
        load_file(path.parent, **HOST)


def test_offsets_that_are_no_multiple_of_the_size(path: Path) -> None:
    arrays = {"a": numpy.uint8([7]), "b": numpy.float32([1.5, -2]), "c": numpy.float64([3])}
    header, at = {}, 0
    for (name, array), dtype in zip(arrays.items(), ("U8", "F32", "F64"), strict=True):
        offsets = [at, at := at + array.nbytes]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
    text = json.dumps(header).encode()
    head = len(text).to_bytes(8, "little") + text
    path.write_bytes(head + b"".join(array.tobytes() for array in arrays.values()))
    for found in (load_file(path, **HOST), dict(iterate(path, **HOST))):
        assert all(found[name].tobytes() == array.tobytes() for name, array in arrays.items())
        assert all(array.flags.aligned for array in found.values())


def test_names_that_no_tensor_has(path: Path) -> None:
    for names in ("nope", "z*", ["t01", "nope"], iter(["nope"])):
        with pytest.raises(KeyError, match="nope|matches `z"):
            load_file(path, names=names, **HOST)
    assert load_file(path, names=lambda _: False, **HOST) == {}
    found = [name for name, _ in iterate(path, ["t02", "t01", "t02"], **HOST)]
    assert found == ["t02", "t01"]


@pytest.mark.parametrize("window", ["4MiB", "512MiB"])
def test_threads_share_a_file(path: Path, window: str) -> None:
    with safe_open(path, "numpy", window=window) as file, ThreadPoolExecutor(8) as pool:
        names = file.offset_keys() * 4
        for name, array in zip(names, pool.map(file.get_tensor, names), strict=True):
            assert array[0] == array[-1] == int(name[1:])


def test_a_loop_keeps_within_its_window(path: Path) -> None:
    load_file(path, names=["t00"], **HOST)  # what is made once
    tracemalloc.start()
    for number, (name, array) in enumerate(iterate(path, window="16MiB", **HOST)):
        assert array[0] == number, name
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 17 * MIB, peak / MIB


@pytest.mark.parametrize("copy", [False, True])
def test_converted_tensors_take_no_room_for_the_originals(path: Path, copy: bool) -> None:
    arrays = {f"t{n:02}": numpy.full(MIB, n, "float32") for n in range(64)}
    arrays["number"] = numpy.arange(7)
    save_file(arrays, path)
    load_file(path, names=["t00"], **HOST)  # what is made once
    tracemalloc.start()
    report: dict[str, Any] = {}
    loaded = load_file(path, dtype="float16", report=report, copy=copy, **HOST)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    result = 64 * 2 * MIB
    assert peak < result + 101 * MIB, peak / MIB
    assert list(loaded) == list(load_file(path, **HOST))
    for name, array in arrays.items():
        assert loaded[name].dtype == ("int64" if name == "number" else "float16")
        assert (loaded[name] == array).all()
    assert report["bytes"] == sum(array.nbytes for array in arrays.values())


class Counted(forebay.Engine):
    """An engine that notes its calls."""

    def __init__(self, **options: Any) -> None:
        self.calls: list[int] = []

    def start_read_many(self, requests: Any = None, **given: Any) -> Any:
        self.calls.append(len(given["files"]))
        return super().start_read_many(requests, **given)


@pytest.mark.parametrize("ranks", [{}, {"rank": 1, "world_size": 3}])
def test_small_files_are_one_call(path: Path, ranks: dict[str, int]) -> None:
    arrays = {f"u{n}": numpy.arange(n * 1000, dtype="uint16") for n in range(5)}
    for name, array in arrays.items():
        save_file({name: array}, path.parent / f"{name}.safetensors")
    engine, paths = Counted(), sorted(path.parent.glob("*.safetensors"))
    loaded = load_file(paths, **ranks, engine=engine, copy=True, **HOST)
    assert engine.calls == [5] and len(loaded) == 69
    for number in range(64):
        assert (loaded[f"t{number:02}"] == number).all()
    assert all((loaded[name] == array).all() for name, array in arrays.items())
    # Each file's tensors are freed without those of the others.
    bases = {id(loaded[name].base) for name in ("t00", "t63", "u1", "u2", "u3", "u4")}
    assert len(bases) == 5


def test_large_files_are_read_while_the_next_are_planned(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from forebay.safetensors import _load

    monkeypatch.setattr(_load, "_CALL", MIB)
    paths = [path.parent / f"{number}.safetensors" for number in range(6)] + [path]
    for number, small in enumerate(paths[:6]):
        save_file({f"u{number}": numpy.full(MIB // 2, number, "uint8")}, small)
    engine = Counted()
    seen: list[tuple[int, int]] = []
    own: dict[str, Any] = {"engine": engine, "copy": True, **HOST}
    loaded = load_file(paths, progress=lambda *all_: seen.append(all_), **own)
    assert engine.calls == [2, 4, 1] and seen[-1] == (67 * MIB, 67 * MIB)
    assert list(loaded) == [f"u{n}" for n in range(6)] + [f"t{n:02}" for n in range(64)]
    assert all((loaded[f"u{n}"] == n).all() for n in range(6))
    # Pending calls end before an error of a later file is raised.
    path.write_bytes(b"no model")
    with pytest.raises(FormatError, match=path.name):
        load_file(paths, **own)
    assert engine.calls == [2, 4, 1, 2]


def test_an_error_names_the_file_and_the_tensor(path: Path) -> None:
    other = path.parent / "other.safetensors"
    save_file({f"u{n}": numpy.zeros(MIB, "uint8") for n in range(4)}, other)

    class Cut(forebay.Engine):
        def start_read_many(self, requests: Any = None, **given: Any) -> Any:
            os.truncate(other, 2 * MIB + 5000)
            return super().start_read_many(requests, **given)

    content = other.read_bytes()
    for call in (
        lambda: load_file([path, other], engine=Cut(), copy=True, **HOST),
        lambda: list(iterate([path, other], engine=Cut(), copy=True, **HOST)),
        lambda: safe_open(other, "numpy", engine=Cut(), backend="pread").get_tensors(),
    ):
        other.write_bytes(content)
        with pytest.raises(forebay.EndOfFile) as error:
            call()
        assert "cannot load the tensors `u2` to `u3`: " in str(error.value)
        assert f"`{other}`" in str(error.value) and error.value.filename == str(other)


def test_pages_that_are_cut_off_are_an_error(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = path.parent / "other.safetensors"
    save_file({f"u{n}": numpy.zeros(MIB, "uint8") for n in range(4)}, other)
    content, fetch = other.read_bytes(), _pages.Pages.fetch

    def cut(self: Any, *given: Any) -> None:
        os.truncate(other, 2 * MIB + 5000)
        fetch(self, *given)

    monkeypatch.setattr(_pages.Pages, "fetch", cut)
    for call in (
        lambda: load_file([path, other], **HOST),
        lambda: list(iterate(other, **HOST)),
        lambda: safe_open(other, "numpy").get_tensors(),
    ):
        other.write_bytes(content)
        with pytest.raises((forebay.EndOfFile, forebay.FileChanged), match="cannot load") as error:
            call()
        assert f"`{other}`" in str(error.value)


@pytest.mark.parametrize("copy", [False, True])
def test_a_file_that_is_written_to_during_a_load_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, copy: bool
) -> None:
    def change(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def changed(self: Any, *given: Any) -> Any:
            with open(path, "r+b") as file:
                file.seek(MIB)
                file.write(b"new")
            return original(self, *given)

        monkeypatch.setattr(owner, name, changed)

    # Mapped tensors are checked when they are made, copied ones when all bytes have been read.
    change(forebay.safetensors._plan.Part, "made")
    if copy:
        change(forebay.safetensors._ranks.Ranks, "agree")
    for call in (
        lambda: load_file(path, copy=copy, **HOST),
        lambda: list(iterate(path, copy=copy, **HOST)),
    ):
        with pytest.raises(forebay.FileChanged, match="written to during the load"):
            call()
    for backend in ("mmap", "pread"):
        with (
            safe_open(path, "numpy", backend=backend) as file,
            pytest.raises(forebay.FileChanged, match="written to during the load"),
        ):
            file.get_tensor("t01")
            file.get_tensor("t02")


def test_tensors_on_the_host_are_pages_that_change_no_file(path: Path) -> None:
    before = path.read_bytes()
    loaded = load_file(path, **HOST)
    for array in loaded.values():
        array += 1
    assert path.read_bytes() == before
    assert all((array == int(name[1:]) + 1).all() for name, array in loaded.items())
    save_file(loaded, path)  # over the file that they are of
    assert all((loaded[name] == array).all() for name, array in load_file(path, **HOST).items())


def test_a_loaded_model_is_a_plain_dictionary(path: Path) -> None:
    for load in (load_file, forebay.load_file):
        loaded = load(path, **HOST)
        assert type(loaded) is dict and type(loaded.copy()) is dict
        assert type(pickle.loads(pickle.dumps(loaded))) is dict


def test_slices_of_any_kind(path: Path) -> None:
    whole = numpy.arange(24, dtype="int16").reshape(4, 6)
    save_file({"a": whole}, path)
    with safe_open(path, "numpy") as file:
        part = file.get_slice("a")
        for index in (
            numpy.s_[1], numpy.s_[-1, 2], numpy.s_[1:3, ..., numpy.int64(2)], numpy.s_[::2],
            numpy.s_[::-1, 1], numpy.s_[[0, 2]], None, True, numpy.s_[1, None], whole > 7,
        ):  # fmt: skip
            expected = whole[index]
            assert numpy.array_equal(part[index], expected), index
            assert part[index].shape == expected.shape, index


def test_errors_about_long_names_are_short(path: Path) -> None:
    long = "n" * 200_000
    good = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    for header in (
        {long: {**good, "dtype": "U9"}},
        {"a": {**good, "dtype": long}},
        {"a": {**good, "shape": [1] * 50_000, "data_offsets": [0, 2]}},
        {long: good, "b": good},
    ):
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0\0")
        with pytest.raises(FormatError) as raised:
            load_file(path, **HOST)
        assert len(str(raised.value)) < 600 + len(str(path))


def test_modules_whose_parameters_are_parts_of_others(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    safetensors = pytest.importorskip("safetensors.torch")
    from forebay.safetensors import load_model, save_model

    def module(value: float) -> Any:
        made = torch.nn.Module()
        whole = torch.full((4, 3), value)
        made.register_buffer("part", whole[1:3])
        made.register_buffer("whole", whole)
        made.register_buffer("same", whole)
        made.register_buffer("flat", whole.view(-1))
        return made

    save_model(module(2.0), tmp_path / "ours")
    safetensors.save_model(module(3.0), tmp_path / "theirs")
    for file, value in (("ours", 2.0), ("theirs", 3.0)):
        assert len(load_file(tmp_path / file, device="cpu")) == 1
        into = module(0.0)
        assert load_model(into, tmp_path / file) == (set(), [])
        assert into.part.tolist() == [[value] * 3] * 2
        into = module(0.0)
        assert safetensors.load_model(into, tmp_path / file) == (set(), [])
    text = "share memory: omit one, or copy it"
    with pytest.raises(ValueError, match=text):
        save_file({"a": module(1.0).whole, "b": (whole := torch.ones(4)), "c": whole[:2]}, file)


def test_pickles_are_no_elements(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import forebay.torch

    path = tmp_path / "file"
    for protocol in (2, 3, 4, 5):
        path.write_bytes(pickle.dumps({"a": [1.5] * 1000, "b": "text"}, protocol))
        with pytest.raises(FormatError, match="it is a file of `pickle`, not plain elements"):
            forebay.torch.load(path, torch.uint8, device="cpu")
    with open(path, "wb") as file:
        numpy.savez(file, a=numpy.ones(5))
    with pytest.raises(FormatError, match="`numpy.savez`"):
        forebay.torch.load(path, torch.uint8, device="cpu")
    for raw in (b"\x80\x04" + bytes(98), pickle.dumps([1] * 9, 2)[:-1]):
        path.write_bytes(raw)
        assert bytes(forebay.torch.load(path, torch.uint8, device="cpu").tolist()) == raw


def test_a_header_that_no_loader_takes_is_not_written(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match="its header would have 1000.* bytes, and loaders take"):
        save_file({"a": numpy.zeros(1)}, path, {"x": "y" * 100_000_000})
    assert path.read_bytes() == before


@pytest.mark.parametrize("copy", [False, True])
def test_the_report_has_the_time_of_calls_that_overlap_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, copy: bool
) -> None:
    from forebay.safetensors import _load

    monkeypatch.setattr(_load, "_CALL", 1)
    others = [path.parent / f"{number}.safetensors" for number in range(20)]
    for number, other in enumerate(others):
        save_file({f"u{number}": numpy.zeros(MIB, "uint8")}, other)
    begun = time.monotonic()
    report: dict[str, Any] = {}
    load_file([path, *others], report=report, copy=copy, **HOST)
    seconds = report["seconds"]
    assert 0 < seconds["elapsed"] <= time.monotonic() - begun


def test_a_type_to_convert_to_is_checked_before_a_read(path: Path) -> None:
    with pytest.raises(TypeError, match="`dtype` cannot be `float17`"):
        load_file(path, dtype="float17", **HOST)
    torch = pytest.importorskip("torch")
    for wrong in ("meta", "float17", torch.device("cpu"), numpy.float32):
        with pytest.raises(TypeError, match="`dtype` cannot be"):
            load_file(path, "cpu", dtype=wrong)
    save_file({"a": numpy.ones(3, "float32")}, path)
    assert load_file(path, "cpu", dtype="float16")["a"].dtype == torch.float16
    packed = getattr(torch, "float4_e2m1fn_x2", None)
    if packed is None:
        pytest.skip("this torch has no packed type of 4 bits")
    save_file({"q": torch.zeros(4, 4, dtype=torch.uint8).view(packed), "w": torch.ones(4)}, path)
    loaded = load_file(path, "cpu", dtype=torch.bfloat16)
    assert loaded["q"].dtype == packed and loaded["w"].dtype == torch.bfloat16


@pytest.mark.parametrize("shape", [[0, 2**62, 2**62], [1] * 65])
def test_shapes_that_a_framework_cannot_have_are_named(path: Path, shape: list[int]) -> None:
    length = 4 * (0 not in shape)
    about = {"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, length]}}
    header = json.dumps(about).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(length))
    with pytest.raises(FormatError, match="tensor `a` of `.*model.safetensors`: NumPy has no shape"):
        load_file(path, **HOST)
    pytest.importorskip("torch")
    if length:
        assert load_file(path, "cpu")["a"].dim() == 65
    else:
        with pytest.raises(FormatError, match="tensor `a` of .*: torch has no shape"):
            load_file(path, "cpu")


def test_a_module_on_meta_lacks_what_the_files_lack(path: Path) -> None:
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        module = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(2)])
    save_file({"0.weight": torch.zeros(4, 4), "0.bias": torch.zeros(4)}, path)
    with pytest.raises(RuntimeError, match="missing: 1.bias, 1.weight"):
        load_model(module, path)


@pytest.mark.parametrize("copy", [False, True])
def test_tensors_have_the_layout_and_storage_of_new_ones(tmp_path: Path, copy: bool) -> None:
    torch = torch_or_skip()
    shapes = [(), (1,), (3,), (2, 1, 3), (4, 5), (2, 3, 4), (0, 3), (1, 7)]
    kinds = ["bfloat16", "float16", "float32", "float64", "uint8", "int8", "int16", "int32",
             "int64", "bool", "uint16", "float8_e4m3fn", "complex64"]  # fmt: skip
    saved = {
        f"{kind} {shape}": torch.randint(0, 2, shape).to(getattr(torch, kind))
        for kind in kinds for shape in shapes
    }  # fmt: skip
    save_file(saved, tmp_path / "model.safetensors")
    found = load_file(tmp_path / "model.safetensors", copy=copy)
    for name, expected in saved.items():
        own = found[name]
        assert own.dtype == expected.dtype and own.shape == expected.shape, name
        assert own.stride() == expected.stride() and own.is_contiguous(), name
        assert own.untyped_storage().nbytes() == expected.nbytes, name
        assert torch.equal(own.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8))
        own.zero_()
    assert all(not one.to(torch.complex64).any() for one in found.values())


def test_limits_are_read_again_after_a_while_or_near_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from forebay import _memory

    left, reads = 1 << 30, []
    monkeypatch.setattr(_memory, "_known", (0.0, 0))
    monkeypatch.setattr(_memory._forebay, "memory_left", lambda: reads.append(1) or (left, "limit"))
    monkeypatch.setattr(_memory, "_KNOWN_S", 1e9)
    for _ in range(100):
        _memory.require(4 << 20, "cannot copy")
    assert len(reads) == 1
    _memory.require(400 << 20, "cannot copy")
    assert len(reads) == 2, "not enough would be left of what is known"
    left = 100 << 20
    with pytest.raises(forebay.OutOfMemory, match="cannot copy: it takes 900.0 MiB"):
        _memory.require(900 << 20, "cannot copy")
    monkeypatch.setattr(_memory, "_known", (0.0, 1 << 40))
    with pytest.raises(forebay.OutOfMemory):
        _memory.require(90 << 20, "cannot copy")
