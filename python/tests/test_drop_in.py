"""`forebay.safetensors` in place of `safetensors.torch`: the same calls, compared."""

from __future__ import annotations

import copy
import inspect
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import program
from tensors import torch_or_skip

torch = torch_or_skip()
theirs = pytest.importorskip("safetensors.torch", reason="no safetensors")
import forebay  # noqa: E402
import forebay.safetensors as ours  # noqa: E402
import safetensors  # noqa: E402

FUNCTIONS = ["load", "load_file", "load_model", "save", "save_file", "save_model"]


def tensors() -> dict[str, Any]:
    return {
        "a": torch.arange(12.0).reshape(3, 4),
        "b": torch.ones(2, dtype=torch.bfloat16),
        "one": torch.tensor(3),
        "empty": torch.empty(0, 3),
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_have_the_same_names_and_defaults(name: str) -> None:
    own = inspect.signature(getattr(ours, name)).parameters
    for place, parameter in enumerate(inspect.signature(getattr(theirs, name)).parameters.values()):
        mine = own[parameter.name]
        assert mine.default == parameter.default and mine.kind == parameter.kind
        assert parameter.kind == parameter.KEYWORD_ONLY or list(own).index(parameter.name) == place


def test_each_public_function_is_there() -> None:
    public = [
        name for name, value in vars(theirs).items()
        if inspect.isfunction(value) and value.__module__ == theirs.__name__ and name[0] != "_"
    ]
    # These two are about torch's storages, and not about files.
    assert set(public) - {"storage_ptr", "storage_size"} <= set(ours.__all__)
    methods = {name for name in dir(safetensors.safe_open) if not name.startswith("_")}
    assert methods <= set(dir(ours.safe_open))


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or its exception."""
    try:
        return call()
    except Exception as error:
        return error


def agree(mine: Any, other: Any) -> bool:
    if isinstance(other, Exception):
        # Ours is of a class of its own, which is also theirs.
        return isinstance(mine, Exception) and isinstance(mine, type(other))
    if isinstance(other, dict) and all(map(torch.is_tensor, other.values())):
        return type(mine) is dict and mine.keys() == other.keys() and all(
            mine[name].dtype == other[name].dtype and torch.equal(mine[name], other[name])
            and mine[name].device == other[name].device for name in other
        )
    return type(mine) is type(other) and mine == other


class Shared(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Linear(3, 3)
        self.b = torch.nn.Linear(3, 3)
        self.b.weight = self.a.weight


def files(folder: Path) -> dict[str, Path]:
    theirs.save_file(tensors(), folder / "good", {"format": "pt"})
    content = (folder / "good").read_bytes()
    (folder / "cut").write_bytes(content[:-1])
    (folder / "empty").write_bytes(b"")
    (folder / "text").write_bytes(b"not a model at all, but text")
    (folder / "folder").mkdir()
    names = ["good", "cut", "empty", "text", "missing"]
    return {name: folder / name for name in names}


LOADS: dict[str, Callable[[Any, Path], Any]] = {
    "plain": lambda module, path: module.load_file(path),
    "text": lambda module, path: module.load_file(str(path)),
    "by name": lambda module, path: module.load_file(filename=path),
    "device": lambda module, path: module.load_file(path, "cpu"),
    "pread": lambda module, path: module.load_file(path, backend="pread"),
    "mmap": lambda module, path: module.load_file(path, device="cpu", backend="mmap"),
    "bytes": lambda module, path: module.load(path.read_bytes()),
    "bytes by name": lambda module, path: module.load(data=path.read_bytes()),
}


@pytest.mark.parametrize("name", LOADS)
def test_loads_have_the_same_results(tmp_path: Path, name: str) -> None:
    for path in files(tmp_path).values():
        mine, other = (outcome(lambda m=m: LOADS[name](m, path)) for m in (ours, theirs))
        assert agree(mine, other), (path.name, mine, other)


def opened(module: Any, path: Path, step: Callable[[Any], Any]) -> Any:
    with module.safe_open(path, framework="pt") as file:
        return step(file)


STEPS: dict[str, Callable[[Any], Any]] = {
    "keys": lambda file: sorted(file.keys()),
    "the order": lambda file: file.offset_keys(),
    "metadata": lambda file: file.metadata(),
    "one": lambda file: {"a": file.get_tensor("a")},
    "by name": lambda file: {"a": file.get_tensor(name="a")},
    "all": lambda file: file.get_tensors(),
    "missing": lambda file: file.get_tensor("none"),
    "shape": lambda file: file.get_slice("a").get_shape(),
    "dtype": lambda file: file.get_slice("a").get_dtype(),
    "rows": lambda file: {"a": file.get_slice("a")[1:]},
    "columns": lambda file: {"a": file.get_slice("a")[:, 1:3]},
    "an element": lambda file: {"a": file.get_slice("a")[1, 2]},
    "a missing part": lambda file: file.get_slice("none"),
}


@pytest.mark.parametrize("name", STEPS)
def test_opened_files_have_the_same_results(tmp_path: Path, name: str) -> None:
    for path in files(tmp_path).values():
        both = (outcome(lambda m=m: opened(m, path, STEPS[name])) for m in (ours, safetensors))
        mine, other = both
        assert agree(mine, other), (path.name, mine, other)


def shared() -> dict[str, Any]:
    one = torch.zeros(8)
    return {"a": one, "b": one[4:]}


SAVED: dict[str, Callable[[], Any]] = {
    "tensors": tensors,
    "none": dict,
    "a list": lambda: [torch.zeros(1)],
    "a number": lambda: {"a": 1},
    "shared": shared,
    "not contiguous": lambda: {"a": torch.zeros(3, 4).t()},
    "sparse": lambda: {"a": torch.zeros(3, 4).to_sparse()},
}


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"step": 1}])
def test_saves_have_the_same_results(tmp_path: Path, name: str, metadata: Any) -> None:
    if metadata == {} and name == "none":
        pytest.skip("safetensors cannot read what it writes then")
    for save in (
        lambda module: module.save(SAVED[name](), metadata),
        lambda module: module.save_file(SAVED[name](), tmp_path / module.__name__, metadata),
        lambda module: module.save_file(
            tensors=SAVED[name](), filename=str(tmp_path / module.__name__), metadata=metadata
        ),
    ):
        mine, other = (outcome(lambda m=m: save(m)) for m in (ours, theirs))
        if isinstance(other, bytes) and isinstance(mine, bytes):
            assert agree(theirs.load(mine), theirs.load(other))
        else:
            assert agree(mine, other), (mine, other)
    if (tmp_path / theirs.__name__).exists():
        paths = [tmp_path / module.__name__ for module in (ours, theirs)]
        assert agree(*(theirs.load_file(path) for path in paths))
        both = [opened(safetensors, path, lambda file: file.metadata()) for path in paths]
        assert both[0] == both[1]


def test_modules_have_the_same_results(tmp_path: Path) -> None:
    found = []
    for module in (ours, theirs):
        path = tmp_path / module.__name__
        torch.manual_seed(1)
        assert module.save_model(Shared(), str(path), {"format": "pt"}) is None
        model = Shared()
        found.append((module.load_model(model, path), model.state_dict()))
        with pytest.raises(RuntimeError):
            module.load_model(torch.nn.Linear(3, 3), path)
        loose = module.load_model(torch.nn.Linear(3, 3), path, strict=False, device="cpu")
        found[-1] += (sorted(loose[0]), sorted(loose[1]))
    assert found[0][0][0] == found[1][0][0] and list(found[0][0][1]) == list(found[1][0][1])
    assert agree(dict(found[0][1]), dict(found[1][1])) and found[0][2:] == found[1][2:]


def test_tensors_of_bytes_are_aligned() -> None:
    """The header has any length, and a tensor of one byte may be before the others."""
    saved = ours.save({"a": torch.arange(4.0), "b": torch.ones(1, dtype=torch.uint8)})
    length = int.from_bytes(saved[:8], "little")
    header = saved[8 : 8 + length].rstrip()
    for pad in range(8):
        text = header + b" " * pad
        data = len(text).to_bytes(8, "little") + text + saved[8 + length :]
        found, array = ours.load(data)["a"], ours.load(data, "numpy")["a"]
        assert found.data_ptr() % 4 == 0 and found.tolist() == [0, 1, 2, 3], pad
        assert array.flags.aligned and array.tolist() == [0, 1, 2, 3], pad


def test_contiguous_tensors_of_any_stride_are_saved(tmp_path: Path) -> None:
    row = torch.empty_strided((2, 1), (1, 7)).fill_(1.0)
    for tensor in (torch.randn(1, 3).t(), torch.empty(0, 3).t(), row):
        assert tensor.is_contiguous()
        ours.save_file({"a": tensor}, tmp_path / "model")
        assert torch.equal(ours.load_file(tmp_path / "model")["a"], tensor)


def test_a_scalar_of_two_numbers_is_refused(tmp_path: Path) -> None:
    scalar = torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(ValueError, match=r"holds two numbers.*`\.view\(1\)`"):
        ours.save_file({"a": scalar}, tmp_path / "model")
    ours.save_file({"a": scalar.view(1)}, tmp_path / "model")
    assert ours.load_file(tmp_path / "model")["a"].shape == (1,)


def test_a_result_is_a_plain_dictionary_in_every_way(tmp_path: Path) -> None:
    path = files(tmp_path)["good"]
    for load in (ours.load_file, forebay.load_file):
        loaded = load(path, device="cpu")
        for again in (loaded, copy.copy(loaded), copy.deepcopy(loaded), loaded | {}):
            assert type(again) is dict and agree(again, tensors())
        assert type(pickle.loads(pickle.dumps(loaded))) is dict
        torch.save(loaded, stream := io.BytesIO())
        stream.seek(0)
        assert agree(torch.load(stream, weights_only=True), tensors())
    torch.save(ours.load_file(path), tmp_path / "saved.pt")
    code = """
import sys
sys.modules["forebay"] = None
import torch
print(sorted(torch.load(sys.argv[1], weights_only=True)))
"""
    assert program(code, tmp_path / "saved.pt").stdout.strip() == str(sorted(tensors()))
    assert os.path.getsize(tmp_path / "saved.pt") < 10_000

