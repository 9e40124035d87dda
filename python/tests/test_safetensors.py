"""Models in safetensors files: loaded whole, one tensor after another, in parts, and written."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import content
from forebay.safetensors import (
    FormatError,
    _load,
    iterate,
    load_file,
    load_model,
    safe_open,
    save_file,
    save_model,
)

numpy = pytest.importorskip("numpy")

HOST: dict[str, Any] = {"framework": "numpy"}


def model(seed: int = 1, prefix: str = "", count: int = 40) -> dict[str, Any]:
    """Arrays of many shapes and types, some without an element or a dimension."""
    draw = random.Random(seed)
    types = ["float32", "float64", "int8", "bool", "uint16", "complex64"]
    arrays: dict[str, Any] = {}
    for number in range(count):
        dtype = numpy.dtype(draw.choice(types))
        shape = [draw.choice([0, 1, 3, 7, 64]) for _ in range(draw.randrange(4))]
        size = int(numpy.prod(shape, dtype=int))
        raw = numpy.frombuffer(content(max(size * dtype.itemsize, 1), seed + number), "uint8")
        raw = raw[: size * dtype.itemsize] & (1 if dtype == bool else 255)
        arrays[f"{prefix}w{number}"] = raw.view(dtype).reshape(shape)
    arrays[f"{prefix}large"] = numpy.arange(300_000, dtype="int32").reshape(300, 1000)
    return arrays


def same(found: Any, expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == array.dtype
        and found[name].shape == array.shape
        and found[name].tobytes() == array.tobytes()
        for name, array in expected.items()
    )


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A model in three files with an index, as the Hugging Face cache has it."""
    root = tmp_path / "models--a--b"
    (snapshot := root / "snapshots" / "0123").mkdir(parents=True)
    (root / "refs").mkdir()
    (root / "refs" / "main").write_text("0123")
    of_tensor, arrays = {}, {}
    for number in range(3):
        name, shard = f"model-{number}.safetensors", model(number, f"{number}.")
        save_file(shard, snapshot / name, {"format": "np"})
        of_tensor |= dict.fromkeys(shard, name)
        arrays |= shard
    index = snapshot / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": of_tensor}))
    return root, arrays


def test_a_written_model_is_loaded(tmp_path: Path) -> None:
    path, arrays = tmp_path / "model.safetensors", model()
    forebay.save_file(arrays, path, {"é": "\n"})
    for more in ({}, {"copy": True}):
        report: dict[str, Any] = {}
        loaded = load_file(path, report=report, **HOST, **more)
        assert same(loaded, arrays) and report["metadata"] == {"é": "\n"}
        assert report["bytes"] == sum(one.nbytes for one in arrays.values())
        routes = {one["route"]: one["bytes"] for one in report["routes"] if one["bytes"]}
        assert routes == {"host" if more else "mapped": report["bytes"]}
    assert all(array.flags.aligned for array in loaded.values())
    save_file({}, path)
    assert load_file(path, **HOST) == {} and os.listdir(tmp_path) == [path.name]


def test_safetensors_reads_what_was_written_and_the_other_way(tmp_path: Path) -> None:
    theirs = pytest.importorskip("safetensors.numpy")
    arrays = {name: one for name, one in model().items() if one.dtype != "complex64"}
    save_file(arrays, tmp_path / "ours")
    assert same(theirs.load_file(tmp_path / "ours"), arrays)
    theirs.save_file(arrays, tmp_path / "theirs", {"a": "b"})
    assert same(load_file(tmp_path / "theirs", **HOST), arrays)


def test_a_model_is_a_file_a_list_an_index_a_folder_or_a_cache(
    folder: tuple[Path, dict[str, Any]],
) -> None:
    root, arrays = folder
    snapshot = root / "snapshots" / "0123"
    names = sorted(name for name in os.listdir(snapshot) if name.endswith("safetensors"))
    files = [snapshot / name for name in names]
    index = snapshot / "model.safetensors.index.json"
    for paths in (root, str(snapshot), os.fsencode(index), files, tuple(files)):
        assert same(load_file(paths, **HOST), arrays)
    index.unlink()
    assert same(load_file(snapshot, **HOST), arrays)


def test_names_choose_tensors(folder: tuple[Path, dict[str, Any]]) -> None:
    root, arrays = folder
    some = ["2.w3", "0.large", "1.w7"]
    assert list(load_file(root, names=some, **HOST)) == ["0.large", "1.w7", "2.w3"]
    assert [name for name, _ in iterate(root, some, **HOST)] == some
    wanted = {name for name in arrays if name.startswith("1.w")}
    assert load_file(root, names="1.w*", **HOST).keys() == wanted
    assert load_file(root, names=wanted.__contains__, **HOST).keys() == wanted
    with pytest.raises(KeyError, match="no tensor `3.w1`"):
        load_file(root, names=["0.w1", "3.w1"], **HOST)


def test_paths_without_a_model_are_refused(folder: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    root, arrays = folder
    snapshot = root / "snapshots" / "0123"
    with pytest.raises(forebay.Error, match="No such file") as missing:
        load_file(tmp_path / "none", **HOST)
    assert isinstance(missing.value, FileNotFoundError)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"it has no `\*\.safetensors`"):
        load_file(tmp_path / "empty", **HOST)
    (root / "refs" / "main").write_text("4567")
    with pytest.raises(forebay.Error, match=r"cannot load `.*4567`: No such file"):
        load_file(root, **HOST)
    (root / "refs" / "main").write_text("0123")
    one = snapshot / "model-0.safetensors"
    with pytest.raises(FormatError, match=r"both have a tensor `0\."):
        load_file([one, one], **HOST)
    index = snapshot / "model.safetensors.index.json"
    for text, why in {
        "{": "not JSON",
        "[]": "does not say",
        "{}": "no `weight_map`",
        '{"weight_map": [1]}': "does not say",
        '{"weight_map": {"a": 1}}': "does not say",
        '{"weight_map": {"a": "b", "a": "b"}}': "No such file",
        '{"weight_map": {}, "weight_map": {}}': "twice",
    }.items():
        index.write_text(text)
        with pytest.raises(forebay.Error, match=why):
            load_file(root, **HOST)
    for name in ("../model-0.safetensors", "/etc/passwd", "..", ""):
        index.write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(FormatError, match="which is not in its folder"):
            load_file(root, **HOST)
    index.write_text(json.dumps({"weight_map": {"other": "model-0.safetensors"}}))
    with pytest.raises(FormatError, match="it has no tensor `other`"):
        load_file(root, **HOST)
    index.rename(snapshot / "a.safetensors.index.json")
    (snapshot / "b.safetensors.index.json").write_text("{}")
    with pytest.raises(FormatError, match="it has several indexes"):
        load_file(root, **HOST)


@pytest.mark.parametrize("window", [1, 100_000, "4M", "1GiB"])
@pytest.mark.parametrize("copy", [False, True])
def test_all_tensors_come_in_order(
    folder: tuple[Path, dict[str, Any]], window: str | int, copy: bool
) -> None:
    root, arrays = folder
    found = dict(iterate(root, window=window, copy=copy, **HOST))
    assert same(found, arrays) and list(found)[0].startswith("0.")
    several = iterate(root, window=window, copy=copy, **HOST)
    assert next(several) is not None
    several.close()


def test_tensors_are_read_one_by_one(tmp_path: Path) -> None:
    path, arrays = tmp_path / "model.safetensors", model(count=60)
    save_file(arrays, path, {"a": "b"})
    for window in (1, 50_000, "512MiB"):
        with safe_open(path, "np", window=window) as file:
            assert file.keys() == sorted(arrays) and file.metadata() == {"a": "b"}
            assert sorted(file.offset_keys()) == sorted(arrays)
            for order in (file.offset_keys(), file.keys(), reversed(file.offset_keys())):
                assert same({name: file.get_tensor(name) for name in order}, arrays)
            shuffled = file.offset_keys() * 2
            random.Random(5).shuffle(shuffled)
            for name in shuffled:
                assert same({name: file.get_tensor(name)}, {name: arrays[name]})
            assert same(file.get_tensors(), arrays)
            with pytest.raises(KeyError, match="no tensor `other`"):
                file.get_tensor("other")


def test_parts_of_a_tensor_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    array = numpy.arange(4 * 5 * 6 * 7, dtype="int16").reshape(4, 5, 6, 7)
    save_file({"a": array}, path)
    draw = random.Random(7)
    with safe_open(path, "np") as file:
        part = file.get_slice("a")
        assert part.get_shape() == [4, 5, 6, 7] and part.get_dtype() == "I16"
        for _ in range(500):
            index: list[Any] = []
            for size in array.shape[: draw.randrange(5)]:
                ends = [draw.choice([None, draw.randrange(-size - 1, size + 2)]) for _ in range(2)]
                index.append(draw.choice([slice(*ends), draw.randrange(-size, size)]))
            if draw.random() < 0.3:
                index.insert(draw.randrange(len(index) + 1), ...)
            found = part[tuple(index)]
            assert found.shape == array[tuple(index)].shape, index
            assert (found == array[tuple(index)]).all(), index
        for wrong in [(0,) * 5, (..., ...), 4]:
            with pytest.raises(IndexError, match="the tensor `a`"):
                part[wrong]


def test_a_rank_gets_its_share(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    arrays = {"a": numpy.arange(96).reshape(8, 12), "b": numpy.arange(8), "c": numpy.float32(3)}
    save_file(arrays, path)
    for rank in range(4):
        report: dict[str, Any] = {}
        loaded = load_file(path, names=["a", "b"], shard=(0, rank, 4), report=report, **HOST)
        assert (loaded["a"] == arrays["a"][2 * rank : 2 * rank + 2]).all()
        assert (loaded["b"] == arrays["b"][2 * rank : 2 * rank + 2]).all()
        assert report["bytes"] == 2 * 12 * 8 + 2 * 8
        columns = load_file(path, names="a", shard=(-1, rank, 4), **HOST)
        assert (columns["a"] == arrays["a"][:, 3 * rank : 3 * rank + 3]).all()

    def decide(name: str, shape: tuple[int, ...]) -> Any:
        assert shape == arrays[name].shape
        return {"a": (1, 1, 2), "b": (slice(1, 4),)}.get(name)

    loaded = dict(iterate(path, shard=decide, **HOST))
    assert (loaded["a"] == arrays["a"][:, 6:]).all() and (loaded["b"] == [1, 2, 3]).all()
    assert loaded["c"] == 3
    for wrong, why in [((0, 0, 3), "has no part"), ((2, 0, 2), "no dimension"), ((0, 1), "a rank")]:
        with pytest.raises(ValueError, match=why):
            load_file(path, names="a", shard=wrong, **HOST)


def test_a_load_that_takes_longer_than_a_look_reports_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": numpy.ones(64 << 20, numpy.uint8)}, path)
    monkeypatch.setattr(_load, "_LOOK", 0)
    seen: list[tuple[int, int]] = []
    tensors = load_file(path, progress=lambda done, total: seen.append((done, total)), **HOST)
    assert tensors["weight"].all()
    assert len(seen) > 1 and seen[-1] == (64 << 20, 64 << 20)
    assert seen == sorted(seen)


def test_progress_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.safetensors"
    save_file(model(), path)
    reported: list[tuple[int, int]] = []
    load_file(path, progress=lambda done, total: reported.append((done, total)), **HOST)
    assert reported[-1][0] == reported[-1][1] > 1_000_000
    load_file(path, progress=True, **HOST)
    assert capsys.readouterr().err.endswith("1.23 of 1.23 MiB\n")


def test_tensors_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    path, array = tmp_path / "model.safetensors", numpy.arange(12).reshape(3, 4)
    path.write_bytes(b"before")
    for wrong, kind, why in [
        ({"a": array, "b": array}, ValueError, "`a` and `b` share memory"),
        ({"a": array, "b": array[1:]}, ValueError, "`a` and `b` share memory"),
        ({"a": array.T}, ValueError, "not contiguous"),
        ({"a": array.astype(">i4")}, ValueError, "another byte order"),
        ({"a": numpy.array(["x"])}, ValueError, "safetensors has no type"),
        ({"a": [1, 2]}, TypeError, "`a` is of type `list`"),
        ({1: array}, TypeError, "the name of a tensor cannot be `int`"),
        ({"__metadata__": array}, ValueError, "cannot have the name `__metadata__`"),
        ({"a": {"b": array}}, TypeError, "`a` is of type `dict`.*names of their own"),
        (array, TypeError, "`tensors` cannot be `ndarray`"),
    ]:
        with pytest.raises(kind, match=why):
            save_file(wrong, path)
        assert path.read_bytes() == b"before" and os.listdir(tmp_path) == [path.name]
    with pytest.raises(TypeError, match="`metadata` takes strings"):
        save_file({"a": array}, path, {"step": 5})  # type: ignore[dict-item]


def test_tensors_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "model.safetensors"
    tensors = {
        "bf16": torch.randn(33, 7, dtype=torch.bfloat16),
        "f8": torch.randn(16).to(torch.float8_e4m3fn),
        "empty": torch.empty(0, 5),
        "one": torch.tensor(3.5),
        "odd": torch.arange(3, dtype=torch.uint8),
        "f32": torch.randn(100, 100),
    }
    if hasattr(torch, "float4_e2m1fn_x2"):
        tensors["f4"] = torch.arange(6, dtype=torch.uint8).view(2, 3).view(torch.float4_e2m1fn_x2)
    save_file(tensors, path)
    loaded = load_file(path, "cpu")
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        if tensor.numel() and tensor.dim():
            assert torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8))
            # A tensor that is saved alone does not take the others with it.
            assert loaded[name].untyped_storage().nbytes() == tensor.nbytes
    assert loaded["one"].item() == 3.5
    half = load_file(path, "cpu", names=["f32", "odd"], dtype=torch.float16)
    assert half["f32"].dtype == torch.float16 and half["odd"].dtype == torch.uint8
    usual = "cuda" if torch.cuda.is_available() else "cpu"
    assert {tensor.device.type for tensor in forebay.load_file(path).values()} == {usual}


def test_modules_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "model.safetensors"

    def module() -> Any:
        made = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)})
        made["b"].weight = made["a"].weight
        return made

    saved, loaded = module(), module()
    save_model(saved, path)
    with safe_open(path) as file:
        assert file.keys() == ["a.bias", "a.weight", "b.bias"]
        assert file.metadata() == {"b.weight": "a.weight"}
    assert load_model(loaded, path) == (set(), [])
    assert all(torch.equal(a, b) for a, b in zip(saved.parameters(), loaded.parameters()))
    with pytest.raises(RuntimeError, match=r"missing: bias, weight; unknown: a\.bias"):
        load_model(torch.nn.Linear(4, 4), path)


def test_an_index_says_which_of_two_copies_is_loaded(tmp_path: Path) -> None:
    save_file({"a": numpy.zeros(3), "b": numpy.zeros(3)}, tmp_path / "1.safetensors")
    save_file({"a": numpy.ones(3), "c": numpy.ones(3)}, tmp_path / "2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    for first in "12":
        of_tensor = {"a": f"{first}.safetensors", "b": "1.safetensors", "c": "2.safetensors"}
        index.write_text(json.dumps({"weight_map": of_tensor}))
        assert load_file(index, **HOST)["a"][0] == int(first) - 1


def test_a_tensor_that_failed_may_be_read_again(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({f"t{number}": numpy.full(1 << 18, number) for number in range(4)}, path)
    whole = path.read_bytes()
    with safe_open(path, "numpy") as file:
        assert file.get_tensor("t0")[0] == 0
        os.truncate(path, 1 << 20)
        for _ in range(2):
            with pytest.raises(forebay.Error):
                file.get_tensor("t1")
        path.write_bytes(whole)
        # Its header may be another one now.
        with pytest.raises(forebay.FileChanged):
            file.get_tensor("t1")
    with safe_open(path, "numpy") as file:
        assert file.get_tensor("t1")[0] == 1
