"""The model that is loaded: made by Forebay, and checked against what safetensors maps."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
    new = folder.with_name(folder.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)

    def write(shard: int) -> None:
        generator = torch.Generator().manual_seed(shard)
        words = [
            torch.randint(-(2**62), 2**62, (rows, 16), generator=generator)
            for _ in range(shard * tensors // shards, (shard + 1) * tensors // shards)
        ]
        first = shard * tensors // shards
        weights = {
            f"layer.{first + number:05}": one.view(torch.bfloat16)
            for number, one in enumerate(words)
        }
        save_file(weights, new / f"model-{shard + 1:05}-of-{shards:05}.safetensors")

    with ThreadPoolExecutor() as pool:
        list(pool.map(write, range(shards)))
    new.rename(folder)


def mapped(paths: Iterable[Name]) -> Iterator[tuple[Name, str, Any]]:
    """Path, name and mapped tensor of all tensors, in the order of their bytes."""
    from safetensors import safe_open

    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.offset_keys():
                yield path, name, file.get_tensor(name)


def shares(paths: list[str], rank: int, ranks: int) -> dict[str, Any]:
    """A rank's equal shares of the mapped tensors."""
    return {name: tensor.chunk(ranks)[rank] for _, name, tensor in mapped(paths)}


def check(expected: dict[str, Any], pairs: Iterable[tuple[str, Any]]) -> None:
    """Raises unless `pairs` are all expected tensors."""
    import torch

    for name, tensor in pairs:
        share = expected.pop(name, None)
        if share is None:
            raise ValueError(f"`{name}` is not in the files, or was loaded twice")
        if (tensor.dtype, tensor.shape) != (share.dtype, share.shape):
            raise ValueError(f"`{name}` is {tensor.dtype} {tuple(tensor.shape)}, but "
                             f"{share.dtype} {tuple(share.shape)} in the file")  # fmt: skip
        ours, theirs = (one.reshape(-1).view(torch.uint8) for one in (tensor, share))
        if not torch.equal(ours, theirs.to(ours.device)):
            raise ValueError(f"the bytes of `{name}` are not those of the file")
    if expected:
        raise ValueError(f"{len(expected)} tensors are missing, such as `{min(expected)}`")
