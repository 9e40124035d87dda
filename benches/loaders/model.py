"""The model that is loaded: made by Forebay, and checked against what safetensors maps."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

Name = TypeVar("Name", str, Path)


def files(path: Path) -> list[Path]:
    """The safetensors files of a model."""
    found = sorted(path.glob("*.safetensors")) if path.is_dir() else [path] * path.is_file()
    if not found:
        raise ValueError(f"no safetensors file at `{path}`: `--make 8` writes a model there")
    return found


def make(folder: Path, nbytes: int, tensors: int, shards: int) -> None:
    """Writes random tensors of equal shape, `nbytes` in all; does nothing if they exist."""
    import torch
    from forebay.safetensors import save_file

    if folder.exists():
        return
    rows = max(nbytes // tensors // 1024, 1) * 8  # of 128 bytes, for up to 8 ranks
    names = [f"layer.{number:05}" for number in range(tensors)]
    generator = torch.Generator().manual_seed(1)
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    for shard in range(shards):
        shape, low, high = (rows, 64), -(2**15), 2**15
        part = {
            name: torch.randint(low, high, shape, dtype=torch.int16, generator=generator)
            for name in names[shard * tensors // shards : (shard + 1) * tensors // shards]
        }
        weights = {name: tensor.view(torch.bfloat16) for name, tensor in part.items()}
        save_file(weights, new / f"model-{shard + 1:05}-of-{shards:05}.safetensors")
    new.rename(folder)


def mapped(paths: Iterable[Name]) -> Iterator[tuple[Name, str, Any]]:
    """Path, name and mapped tensor of all tensors, in the order of their bytes."""
    from safetensors import safe_open

    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.offset_keys():
                yield path, name, file.get_tensor(name)


def check(paths: list[str], pairs: Iterable[tuple[str, Any]], rank: int, ranks: int) -> None:
    """Raises unless `pairs` are the tensors of the files, or a rank's equal shares of them."""
    import torch

    expected = {name: tensor for _, name, tensor in mapped(paths)}
    for name, tensor in pairs:
        whole = expected.pop(name, None)
        if whole is None:
            raise ValueError(f"`{name}` is not in the files, or was loaded twice")
        share = whole.chunk(ranks)[rank]
        if (tensor.dtype, tensor.shape) != (share.dtype, share.shape):
            raise ValueError(f"`{name}` is {tensor.dtype} {tuple(tensor.shape)}, but "
                             f"{share.dtype} {tuple(share.shape)} in the file")  # fmt: skip
        ours, theirs = (one.reshape(-1).view(torch.uint8) for one in (tensor, share))
        if not torch.equal(ours, theirs.to(ours.device)):
            raise ValueError(f"the bytes of `{name}` are not those of the file")
    if expected:
        raise ValueError(f"{len(expected)} tensors are missing, such as `{min(expected)}`")
