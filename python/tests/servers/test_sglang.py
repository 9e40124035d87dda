"""SGLang's loader with ``--model-loader-extra-config '{"forebay": true}'``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

loader = pytest.importorskip("sglang.srt.model_loader.loader", reason="no SGLang")

import forebay.safetensors
import torch
from forebay.sglang import register
from safetensors.torch import save_file
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.model_executor.model_runner_components import weight_updater
from sglang.srt.plugins import load_plugins

load_plugins()  # by the entry point of the installed package


class Parameters(torch.nn.Module):
    """A model with a parameter for each tensor of a file."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros_like(tensor)))

    def load_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            self.get_parameter(name).data.copy_(tensor)


class Model(torch.nn.Module):
    """A model whose rank keeps half of each tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, Any] = {}

    def load_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            self.kept[name] = tensor.narrow(0, 0, tensor.shape[0] // 2).clone()


def served(extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets what a server has decided from its arguments."""
    settings = {
        "model_loader_extra_config": extra,
        "weight_cache_mode": "off",
        "weight_loader_disable_mmap": False,
        "weight_loader_prefetch_checkpoints": False,
        "weight_loader_prefetch_num_threads": 1,
        "weight_loader_drop_cache_after_load": False,
    }
    monkeypatch.setattr(loader, "get_server_args", lambda: None)
    monkeypatch.setattr(weight_updater, "get_pp_stage_load_group", lambda: LoadConfig().load_group)
    for module in (loader, weight_updater):
        monkeypatch.setattr(module, "get_model", lambda: SimpleNamespace(**settings))


def load(folder: Path, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the loader gives a model."""
    served("{}", monkeypatch)
    config = SimpleNamespace(
        model_path=str(folder), revision=None, hf_config=SimpleNamespace(architectures=["Fake"])
    )
    made = loader.DefaultModelLoader(LoadConfig(model_loader_extra_config=extra))
    model = Model()
    model.load_weights(made._get_all_weights(config, model))
    return model.kept


@pytest.fixture
def folder(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    tensors = {f"w{number}": torch.rand(4, 5) for number in range(6)}
    for rest in range(2):
        part = {name: tensors[name] for name in [*tensors][rest::2]}
        save_file(part, tmp_path / f"model-{rest}.safetensors")
    return tmp_path, tensors


def of_sglang(*_: Any, **__: Any) -> Any:
    raise AssertionError("SGLang reads the files by itself")


@pytest.mark.parametrize("extra", [True, {"window": 64, "device": "cpu"}])
def test_forebay_reads_the_files(
    folder: tuple[Path, dict[str, Any]], extra: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tensors = folder
    for name in ("safetensors", "buffered_multi_thread_safetensors"):
        monkeypatch.setattr(loader, f"{name}_weights_iterator", of_sglang)
    kept = load(path, {"forebay": extra}, monkeypatch)
    assert kept.keys() == tensors.keys()
    assert all(torch.equal(kept[name], tensor[:2]) for name, tensor in tensors.items())
    assert loader.safetensors_weights_iterator is of_sglang


@pytest.mark.parametrize("extra", ['{"forebay": true}', "{}"])
def test_an_update_from_disk_reads_as_the_server_does(
    folder: tuple[Path, dict[str, Any]], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, tensors = folder
    model = Parameters(tensors)
    before = {name: value.data_ptr() for name, value in model.named_parameters()}
    served(extra, monkeypatch)
    read: list[Any] = []
    iterate = forebay.safetensors.iterate
    monkeypatch.setattr("forebay.safetensors.iterate", lambda *a, **o: read.append(a) or iterate(*a, **o))
    config = SimpleNamespace(
        model_path="",
        revision=None,
        dtype=torch.float32,
        quantization=None,
        hf_config=SimpleNamespace(architectures=["Fake"]),
    )
    updater = weight_updater.WeightUpdater(
        tp_rank=0,
        device="cpu",
        gpu_id=0,
        model_config=config,
        custom_weight_loaders={},
        get_model=lambda: model,
        update_model_fields=lambda *_, **__: None,
        recapture_cuda_graph=lambda: None,
        get_model_runner=lambda: None,
    )
    assert updater.update_weights_from_disk(str(path), "auto") == (True, "Succeeded to update model weights.")
    assert bool(read) == (extra != "{}")
    for name, value in model.named_parameters():
        assert torch.equal(value, tensors[name]) and value.data_ptr() == before[name]


@pytest.mark.parametrize("extra", [{}, {"forebay": False}, {"enable_multithread_load": False}])
def test_without_the_option_sglang_reads_them(
    folder: tuple[Path, dict[str, Any]], extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.safetensors.iterate", of_sglang)
    kept = load(folder[0], extra, monkeypatch)
    assert kept.keys() == folder[1].keys()


def test_files_of_another_format_are_read_by_sglang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.rand(4, 5)
    torch.save({"weight": tensor}, tmp_path / "pytorch_model.bin")
    kept = load(tmp_path, {"forebay": True}, monkeypatch)
    assert torch.equal(kept["weight"], tensor[:2])


@pytest.mark.parametrize(
    "extra", [{"forebay": {"windows": 1}}, {"forebay": 5}, {"forebay": True, "unknown": 1}]
)
def test_unknown_options_are_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"windows|takes `true`|unknown"):
        loader.DefaultModelLoader(LoadConfig(model_loader_extra_config=extra))


def test_registering_again_changes_nothing() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry

    before = {target: len(hooks) for target, hooks in HookRegistry._hooks.items()}
    register()
    assert {target: len(hooks) for target, hooks in HookRegistry._hooks.items()} == before
