"""Models that are loaded into tensors that exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay import load_into, save_file
from test_safetensors_ranks import in_group, world

torch = pytest.importorskip("torch")


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A model of several windows."""
    tensors = {f"{number}.w": torch.rand(64, 1000 + number) for number in range(8)}
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors", tensors


def empty(tensors: dict[str, Any], dtype: Any = None) -> dict[str, Any]:
    return {name: torch.zeros_like(tensor, dtype=dtype) for name, tensor in tensors.items()}


def same(found: dict[str, Any], tensors: dict[str, Any]) -> bool:
    return all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_values_arrive_where_the_tensors_are(model: Any) -> None:
    path, tensors = model
    found = empty(tensors)
    places = {name: tensor.data_ptr() for name, tensor in found.items()}
    load_into(found, path, window="256KiB")
    assert same(found, tensors)
    assert places == {name: tensor.data_ptr() for name, tensor in found.items()}


def test_types_are_converted_and_names_mapped(model: Any) -> None:
    path, tensors = model
    found = {name[:1]: tensor for name, tensor in empty(tensors, torch.float64).items()}
    del found["3"]
    load_into(found, path, rename=lambda name: name[:1] if name != "3.w" else None)
    assert same(found, {name[:1]: tensor for name, tensor in tensors.items() if name != "3.w"})


def test_parameters_and_views_are_filled(model: Any) -> None:
    path, tensors = model
    whole = torch.zeros(1000, 64)
    parameter = torch.nn.Parameter(torch.zeros(64, 1001))
    load_into({"0.w": whole.T, "1.w": parameter}, path)
    assert torch.equal(whole.T, tensors["0.w"]) and torch.equal(parameter, tensors["1.w"])
    assert parameter.grad_fn is None and parameter.requires_grad


def test_a_part_is_loaded_into_a_part(model: Any) -> None:
    path, tensors = model
    found = {name: torch.zeros(32, tensor.shape[1]) for name, tensor in tensors.items()}
    load_into(found, path, shard=(0, 1, 2))
    assert same(found, {name: tensor[32:] for name, tensor in tensors.items()})


def test_nothing_changes_if_names_or_shapes_differ(model: Any) -> None:
    path, tensors = model
    found = empty(tensors) | {"7.w": torch.zeros(2, 2)}
    with pytest.raises(forebay.RequestError, match=r"`7.w`: it has the shape \(64, 1007\)"):
        load_into(found, path)
    with pytest.raises(KeyError, match="no tensor `none`"):
        load_into(empty(tensors) | {"none": torch.zeros(1)}, path)
    with pytest.raises(forebay.RequestError, match="another tensor of the files is `0.w` too"):
        load_into({"0.w": found["0.w"]}, path, rename=lambda _: "0.w")
    with pytest.raises(ValueError, match="on several devices: cpu, meta"):
        load_into(found | {"7.w": torch.zeros(2, device="meta")}, path)
    assert not any(tensor.any() for tensor in found.values())
    load_into({}, path)


def test_an_error_says_what_has_changed(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path, tensors = model
    found = empty(tensors)
    monkeypatch.setattr(type(found["0.w"]), "copy_", _third(type(found["0.w"]).copy_))
    with pytest.raises(MemoryError) as error:
        load_into(found, path)
    assert error.value.__notes__ == ["2 of 8 tensors have their new values"]


def _third(copy: Any) -> Any:
    calls = iter(range(2))

    def failing(*arguments: Any) -> Any:
        if next(calls, None) is None:
            raise MemoryError
        return copy(*arguments)

    return failing


def grouped(rank: int, path: Path) -> Any:
    from forebay.safetensors import _group

    _group.CHUNK = 1 << 16
    tensors = forebay.load_file(path, "cpu")
    found = empty(tensors)
    load_into(found, path, group=world(), window="512KiB")
    return same(found, tensors)


def misshapen(rank: int, path: Path) -> Any:
    found = empty(forebay.load_file(path, "cpu"))
    if rank == 1:
        found["7.w"] = torch.zeros(1)
    try:
        load_into(found, path, group=world())
    finally:
        assert not any(tensor.any() for tensor in found.values())


def test_a_group_loads_into_tensors(model: Any, tmp_path: Path) -> None:
    assert in_group(tmp_path, 2, grouped, model[0]) == [True, True]
    (tmp_path / "store").unlink(missing_ok=True)
    ours, theirs = in_group(tmp_path, 2, misshapen, model[0])
    assert "rank 1 of the group could not start" in ours and "it has the shape" in theirs
