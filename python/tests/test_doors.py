"""Paths and devices mean one thing in every call that takes them, and others are refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import forebay
import pytest

torch = pytest.importorskip("torch", reason="no torch")

import forebay.torch  # noqa: E402  # after it is known
import torch.distributed.checkpoint as dcp  # noqa: E402  # after it is known
from forebay.blocks import BlockStore  # noqa: E402
from forebay.safetensors import iterate, load_file, safe_open, save_file, save_sharded  # noqa: E402
from forebay.torch.dcp import Reader, Writer  # noqa: E402

TENSORS = {"a": torch.arange(4.0)}

LOADS: dict[str, Callable[[Any], Any]] = {
    "load_file": load_file,
    "a list": lambda path: load_file([path]),
    "safe_open": safe_open,
    "iterate": lambda path: list(iterate(path)),
    "open": forebay.open,
    "read": lambda path: forebay.read(path, "cpu"),
    "records": lambda path: forebay.torch.RecordDataset(
        [path], (4,), torch.float32, "cpu", batch_size=1
    ),
    "Reader": lambda path: dcp.load(dict(TENSORS), storage_reader=Reader(path), no_dist=True),
}

SAVES: dict[str, Callable[[Any], Any]] = {
    "save_file": lambda path: save_file(TENSORS, path),
    "save_sharded": lambda path: save_sharded(TENSORS, path),
    "save": lambda path: forebay.torch.save(path, TENSORS),
    "open": lambda path: forebay.open(path, "x"),
    "Writer": lambda path: dcp.save(TENSORS, storage_writer=Writer(path), no_dist=True),
    "BlockStore": lambda path: BlockStore(path, capacity="8MiB", keep_free=0),
}

CALLS = [*LOADS.items(), *((f"{name} to", call) for name, call in SAVES.items())]


@pytest.mark.parametrize(("name", "call"), CALLS, ids=lambda one: one if isinstance(one, str) else "")
def test_what_is_no_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, call: Callable[[Any], Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    addresses = ["s3://b/k", "https://h/x", "hf://u/m", b"gs://b/k", PurePosixPath("s3://b/k"), "~/x"]
    for path in addresses:
        with pytest.raises(forebay.MissingFile, match="not supported|not expanded") as missing:
            call(path)
        assert os.fsdecode(path) in str(missing.value)
    with pytest.raises(forebay.MissingFile):
        call("")
    for path in (None, 1.5, True, [None], object()):
        with pytest.raises((TypeError, forebay.RequestError), match="(?i)path|list|`roots`"):
            call(path)
    for path in ("a\ud800", "a\0b"):
        with pytest.raises(ValueError, match="surrogates not allowed|embedded null byte"):
            call(path)
    assert os.listdir() == []


@pytest.mark.parametrize("kind", [str, os.fsencode, Path])
def test_paths_of_every_kind_are_the_same_file(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    path = tmp_path / "a\udcff.safetensors"  # bytes that are not UTF-8
    SAVES["save_file"](kind(path))
    for name in ("load_file", "a list", "safe_open", "iterate", "open", "read"):
        LOADS[name](kind(path))
    for at, name in enumerate(("save_sharded", "Writer", "BlockStore")):
        SAVES[name](kind(tmp_path / str(at)))
    LOADS["load_file"](kind(tmp_path / "0"))
    LOADS["Reader"](kind(tmp_path / "1"))


def test_a_name_with_half_a_character_is_refused(tmp_path: Path) -> None:
    for save in ("save_file", "save_sharded"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(TENSORS, "b\ud800", torch.zeros(2))
            with pytest.raises(ValueError, match=r"`.*b\\ud800` in a name is not Unicode"):
                SAVES[save](tmp_path / save)
    assert not list(tmp_path.rglob("*.safetensors"))
    with pytest.raises(ValueError, match="is not Unicode"):
        save_file(TENSORS, tmp_path / "a", {"key": "\udfff"})
    save_file(TENSORS, tmp_path / "a.safetensors")
    for load in (lambda name: load_file(tmp_path, names=[name]), safe_open(tmp_path / "a.safetensors").get_tensor):
        with pytest.raises(KeyError) as raised:
            load("b\ud800")
        assert str(raised.value).isprintable()
    index = tmp_path / "model.safetensors.index.json"
    for name in ('"a\\ud800"', '"a\udc80"'):
        index.write_text(f'{{"weight_map": {{{name}: "a.safetensors"}}}}', errors="surrogateescape")
        with pytest.raises(ValueError, match="JSON|tensor"):
            load_file(index)


DEVICES: dict[str, Callable[[Path, Any], Any]] = {
    "load_file": load_file,
    "a list": lambda path, device: load_file(path, [device]),
    "safe_open": lambda path, device: safe_open(path, "pt", device),
    "iterate": lambda path, device: list(iterate(path, device=device)),
    "load": lambda path, device: forebay.torch.load(path, torch.uint8, (4,), device),
    "read": forebay.read,
    "allocate": lambda path, device: forebay.default_engine().allocate(4, device),
    "gpu": lambda path, device: forebay.default_engine().gpu(device),
    "address": lambda path, device: forebay.open(path).read_into((1, 1, device)),
    "numpy": lambda path, device: load_file(path, device, framework="numpy"),
}


@pytest.mark.parametrize("call", DEVICES)
def test_devices_are_checked_first(tmp_path: Path, call: str) -> None:
    save_file(TENSORS, path := tmp_path / "a.safetensors")
    run = DEVICES[call]
    for device in ("gpu", "mps", "meta", "cuda:x", "cuda:-1", "", True, False, 1.5, -1, torch.device("meta")):
        with pytest.raises(ValueError, match="^`device` cannot be"):
            run(path, device)
    if call == "address":
        return  # the memory would be looked at
    for device in ("cuda:63", 63, torch.device("cuda", 63), 2**70):
        with pytest.raises((forebay.NoDevice, ValueError), match="^`device` cannot be|^no GPU"):
            run(path, device)
    for device in ("cpu", torch.device("cpu")):
        if call != "load":  # it reads plain elements
            run(path, device)
