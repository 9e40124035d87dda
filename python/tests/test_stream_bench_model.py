"""The file of layers that `forebay.stream_bench` makes, and never writes over another."""

from __future__ import annotations

import errno
from pathlib import Path

import forebay
import pytest
from faulty import mounted
from tensors import torch_or_skip

torch = torch_or_skip()

from forebay.stream_bench import model  # noqa: E402  # after it is known that there is a torch

LAYERS, NBYTES = 3, 1 << 16


def made(path: Path, seed: int = 1) -> model.Model:
    return model.made(path, LAYERS, NBYTES, "cpu", seed)


def test_layers_are_written_once_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "layers"
    first = made(path)
    words = torch.from_file(str(path), size=2 * LAYERS * NBYTES // 8, dtype=torch.int64)
    assert [int(model.weighed(one)) for one in words.split(NBYTES // 8)] == first.sums
    before = path.stat()
    assert made(path) == first
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize("kind", ["other bytes", "another seed", "cut", "longer", "a late one"])
def test_an_existing_file_is_left_as_it_is(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "layers"
    made(path, seed=2 if kind == "another seed" else 1)
    old = path.read_bytes()
    if kind == "cut":
        old = old[:NBYTES]  # the first layer alone, as a run that was killed leaves it
    elif kind == "longer":
        old += bytes(NBYTES)
    elif kind != "another seed":
        old = b"precious"
    path.write_bytes(old)
    if kind == "a late one":  # another program makes it between a look and the opening
        monkeypatch.setattr(Path, "exists", lambda path: False)
    with pytest.raises(ValueError, match="layers` has other contents.*or remove it"):
        made(path)
    assert path.read_bytes() == old


def test_a_file_that_cannot_be_finished_is_removed(tmp_path: Path) -> None:
    with mounted(tmp_path, write=errno.EIO) as folder:
        with pytest.raises(forebay.Error, match="cannot write `.*layers`"):
            made(folder / "layers")
        assert list(folder.iterdir()) == []
