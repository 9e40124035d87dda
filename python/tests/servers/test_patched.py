"""transformers and diffusers, with safetensors files that Forebay loads."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import forebay.safetensors
import pytest
from forebay.safetensors import patched

safetensors = pytest.importorskip("safetensors", reason="no safetensors")
torch = pytest.importorskip("torch", reason="no torch")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that Forebay has opened."""
    paths = []
    make = forebay.safetensors.safe_open.__init__

    def noted(self: Any, filename: Any, *args: Any, **named: Any) -> None:
        paths.append(str(filename))
        make(self, filename, *args, **named)

    monkeypatch.setattr(forebay.safetensors.safe_open, "__init__", noted)
    return paths


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], tensor) for name, tensor in expected.items()
    )


def test_a_model_of_transformers_is_the_same(tmp_path: Path, opened: list[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="no transformers")
    import llama

    model = llama.saved(tmp_path)
    of_theirs = transformers.modeling_utils.safe_open
    for device in (None, "cpu"):
        opened.clear()
        with patched(device):
            loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
        assert same(loaded.state_dict(), model.state_dict())
        assert len({Path(path).name for path in opened}) == 4
    assert transformers.modeling_utils.safe_open is of_theirs
    opened.clear()
    transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert opened == []


def test_the_example_of_the_documentation_runs(
    tmp_path: Path, opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="no transformers")
    import llama

    page = (Path(__file__).parents[3] / "docs" / "serve.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    [example] = [block for block in blocks if "transformers" in block]
    llama.saved(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    exec(example, {})
    assert len({Path(path).name for path in opened}) == 4


def test_a_model_of_diffusers_is_the_same(tmp_path: Path, opened: list[str]) -> None:
    diffusers = pytest.importorskip("diffusers", reason="no diffusers")
    model = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(32, 32),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    )
    model.save_pretrained(tmp_path)
    with patched():
        loaded = diffusers.UNet2DModel.from_pretrained(tmp_path)
    assert same(loaded.state_dict(), model.state_dict()) and opened


@pytest.fixture
def file(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    from safetensors.torch import save_file

    tensors = {"a": torch.rand(3, 5), "b": torch.arange(7)}
    save_file(tensors, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors", tensors


def test_the_functions_of_safetensors_load_by_forebay(
    file: tuple[Path, dict[str, Any]], opened: list[str]
) -> None:
    import safetensors.numpy
    import safetensors.torch

    path, tensors = file
    with patched(torch.device("cpu")):
        assert same(safetensors.torch.load_file(path), tensors)
        assert same(safetensors.torch.load_file(path, device="cpu", backend="pread"), tensors)
        arrays = safetensors.numpy.load_file(path)
    assert arrays["b"].tolist() == [*range(7)]
    assert opened == [str(path)] * 3


def test_errors_are_those_that_programs_catch(file: tuple[Path, dict[str, Any]]) -> None:
    import safetensors.torch

    path, _ = file
    with patched():
        with safetensors.safe_open(path, "pt") as opened:
            for call in (opened.get_tensor, opened.get_slice):
                with pytest.raises(safetensors.SafetensorError, match="`other`"):
                    call("other")
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(safetensors.SafetensorError):
            safetensors.torch.load_file(path)
        with pytest.raises(FileNotFoundError):
            safetensors.torch.load_file(path.with_name("none"))


def test_a_block_in_a_block_and_an_error(file: tuple[Path, dict[str, Any]]) -> None:
    before = safetensors.safe_open
    with pytest.raises(KeyError), patched():
        outer = safetensors.safe_open
        with patched("cpu"):
            assert safetensors.safe_open not in (before, outer)
        assert safetensors.safe_open is outer
        raise KeyError
    assert safetensors.safe_open is before


def test_blocks_of_tasks_end_in_any_order() -> None:
    before = safetensors.safe_open
    first, second = patched(), patched()
    first.__enter__()
    second.__enter__()
    inner = safetensors.safe_open
    first.__exit__(None, None, None)
    assert safetensors.safe_open is inner
    second.__exit__(None, None, None)
    assert safetensors.safe_open is before


def test_frameworks_that_forebay_lacks_are_left_to_safetensors(
    file: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors, "safe_open", lambda *given: given)
    with patched():
        assert safetensors.safe_open(file[0], "flax", "cpu") == (file[0], "flax", "cpu")


def test_modules_that_are_imported_in_the_block_are_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "late", late := ModuleType("late"))
    with patched():
        exec("from safetensors import safe_open as named", vars(late))
        assert issubclass(late.named, forebay.safetensors.safe_open)
    assert late.named is safetensors.safe_open
    assert forebay.safetensors.safe_open is not safetensors.safe_open


def test_another_thread_waits_for_the_end_of_the_block() -> None:
    seen = []

    def enter() -> None:
        with patched():
            seen.append(safetensors.safe_open)

    before, thread = safetensors.safe_open, threading.Thread(target=enter)
    with patched():
        thread.start()
        thread.join(0.2)
        assert seen == []
    thread.join()
    assert len(seen) == 1 and safetensors.safe_open is before
