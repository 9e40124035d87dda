"""vLLM with ``--load-format forebay``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="no vLLM")
os.environ["HF_HUB_OFFLINE"] = "1"

import llama
import torch
from forebay.vllm import register
from safetensors.torch import save_file
from vllm.config import LoadConfig
from vllm.model_executor import model_loader
from vllm.model_executor.model_loader import default_loader, weight_utils
from vllm.plugins import load_general_plugins

PROGRAM = """
import os
import sys
from pathlib import Path
from vllm import LLM, SamplingParams


def left(worker):
    threads = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
    files = [os.readlink(file) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    return [name for name in threads + files if "forebay-" in name or "io_uring" in name]


if __name__ == "__main__":
    model, other, load_format, ranks = sys.argv[1:]
    llm = LLM(
        model,
        load_format=load_format,
        tensor_parallel_size=int(ranks),
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=64,
        model_loader_extra_config={"window": "1MiB"} if load_format == "forebay" else {},
    )
    for path in (None, other, model):
        if path is not None:
            llm.collective_rpc("reload_weights", kwargs={"weights_path": path})
        [out] = llm.generate(
            [{"prompt_token_ids": [1, 2, 3, 4, 5]}],
            SamplingParams(max_tokens=8, temperature=0, detokenize=False),
        )
        print("tokens:", out.outputs[0].token_ids)
        print("left:", sum(llm.collective_rpc(left), []))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("llama") for _ in range(2)]
    for seed, folder in enumerate(folders, 1):
        llama.saved(folder, seed)
    return folders


def tokens(models: list[Path], load_format: str, ranks: int) -> list[str]:
    """Those after the start, and after reloads of the other model and of the first."""
    program = models[0].parent / "serve.py"
    program.write_text(PROGRAM)
    settings = {
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # runs a function in the workers
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # else each rank needs a NUMA node of its own
    }
    done = subprocess.run(
        [sys.executable, str(program), *map(str, models), load_format, str(ranks)],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert re.findall(r"left: (.*)", done.stdout) == ["[]"] * 3, done.stdout + done.stderr
    return re.findall(r"tokens: (.*)", done.stdout)


@pytest.mark.parametrize("ranks", [1, 2])
def test_tokens_are_the_same_also_after_reloads(models: list[Path], ranks: int) -> None:
    first, other, again = found = tokens(models, "forebay", ranks)
    assert first == again != other
    assert found == tokens(models, "safetensors", ranks)


def made(**options: Any) -> Any:
    load_general_plugins()  # by the entry point of the installed package
    config = LoadConfig(load_format="forebay", model_loader_extra_config=options)
    return model_loader.get_model_loader(config)


def weights(loader: Any, folder: Path, **source: Any) -> dict[str, Any]:
    own = default_loader.DefaultModelLoader.Source(str(folder), None, **source)
    return dict(loader._get_weights_iterator(own))


@pytest.fixture
def experts(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A layer of four experts in two files."""
    names = [f"layers.0.experts.{number}.up.weight" for number in range(4)]
    tensors = {name: torch.rand(3, 5) for name in [*names, "norm.weight"]}
    first = {name: tensors[name] for name in names[:2]}
    save_file(first, tmp_path / "model-1.safetensors")
    rest = {name: tensors[name] for name in [*names[2:], "norm.weight"]}
    save_file(rest, tmp_path / "model-2.safetensors")
    return tmp_path, tensors


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], tensor) for name, tensor in expected.items()
    )


def test_registering_again_changes_nothing() -> None:
    loader = made()
    register()
    register()
    assert type(made()) is type(loader) and type(loader).__module__ == "forebay.vllm._loader"


def test_all_tensors_come_with_their_prefix(experts: tuple[Path, dict[str, Any]]) -> None:
    folder, tensors = experts
    reader = default_loader.safetensors_weights_iterator
    all_options = {"window": 64, "copy": True, "device": "cpu", "enable_weights_track": True}
    for options in ({}, all_options):
        found = weights(made(**options), folder, prefix="model.")
        assert same(found, {f"model.{name}": tensor for name, tensor in tensors.items()})
    assert default_loader.safetensors_weights_iterator is reader


def test_experts_of_other_ranks_are_left_out(experts: tuple[Path, dict[str, Any]]) -> None:
    folder, tensors = experts
    loader = made()
    loader.local_expert_ids = {1, 2}
    found = weights(loader, folder)
    for number in (0, 3):
        del tensors[f"layers.0.experts.{number}.up.weight"]
    assert same(found, tensors)


def test_files_without_a_used_tensor_are_left_out(experts: tuple[Path, dict[str, Any]]) -> None:
    folder, tensors = experts
    found = weights(made(), folder, is_unused_weight=lambda name: "experts" in name)
    assert found.keys() == {*[*tensors][2:]}


def test_an_encoder_alone_leaves_out_the_files_of_the_language_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "model-1.safetensors": {"vision.a": torch.rand(3), "language_model.a": torch.rand(4)},
        "model-2.safetensors": {"language_model.b": torch.rand(5)},
        "model-3.safetensors": {"vision.b": torch.rand(6)},
    }
    for name, tensors in files.items():
        save_file(tensors, tmp_path / name)
    index = {name: file for file, tensors in files.items() for name in tensors}
    text = json.dumps({"weight_map": index})
    (tmp_path / "model.safetensors.index.json").write_text(text)
    loader = made()
    # What `--mm-encoder-only` sets for a model with a language model of this name.
    monkeypatch.setattr(loader, "_encoder_only_lm_prefixes", ("language_model.",))
    found = weights(loader, tmp_path)
    assert same(found, files["model-1.safetensors"] | files["model-3.safetensors"])
    monkeypatch.setattr(loader, "_encoder_only_lm_prefixes", ("language_model.", "vision."))
    with pytest.raises(RuntimeError, match="removed all weight files"):
        weights(loader, tmp_path)


def test_tables_of_engram_stay_on_the_host(
    experts: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from forebay.vllm import _loader

    folder, tensors = experts
    calls: list[tuple[str, list[str]]] = []
    iterate = _loader.iterate

    def noted(files: Any, names: Any, *, device: str, **options: Any) -> Any:
        calls.append((device, [name for name in tensors if names(name)]))
        return iterate(files, names, device="cpu", **options)

    config = SimpleNamespace(engram_config=SimpleNamespace(cpu_offload=True))
    monkeypatch.setattr("vllm.config.get_current_vllm_config_or_none", lambda: config)
    monkeypatch.setattr(weight_utils, "_ENGRAM_WEIGHT_RE", re.compile("norm"), raising=False)
    monkeypatch.setattr(_loader, "iterate", noted)
    assert same(weights(made(device="cuda"), folder), tensors)
    assert calls == [("cuda", [*tensors][:4]), ("cpu", ["norm.weight"])]


def test_other_formats_are_loaded_by_vllm(tmp_path: Path) -> None:
    tensors = {"weight": torch.rand(3, 5)}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    assert same(weights(made(), tmp_path), tensors)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown option `windows`; use `copy`, `device`, `window`"):
        made(windows="1GiB")
