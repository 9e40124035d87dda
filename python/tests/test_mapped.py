"""A file that is the source of what is written to it: nothing is lost."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import forebay
import forebay.kvikio as kvikio
import pytest
from conftest import content
from forebay import _mapped

OLD = content(300_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "mapped"
    path.write_bytes(OLD)
    return path


@pytest.fixture(params=[mmap.MAP_SHARED, mmap.MAP_PRIVATE])
def mapping(path: Path, request: pytest.FixtureRequest) -> Iterator[mmap.mmap]:
    with open(path, "r+b") as file:
        made = mmap.mmap(file.fileno(), 100_000, request.param, mmap.PROT_READ, offset=65536)
    yield made
    made.close()


def to_engine(path: Path) -> None:
    forebay.open(path, "w")


def to_engine_and_back(path: Path) -> None:
    forebay.open(os.fsencode(path), "w+b")


def to_kvikio(path: Path) -> None:
    kvikio.CuFile(path, "w")


def to_kvikio_and_back(path: Path) -> None:
    kvikio.CuFile(str(path), "w+")


def to_file_of_numbers(path: Path) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    from forebay.kvikio.numpy import tofile

    tofile(np.zeros(100), path)


CUTS = [to_engine, to_engine_and_back, to_kvikio, to_kvikio_and_back, to_file_of_numbers]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["same", "link", "hard link", "removed"])
def test_a_mapped_file_is_not_cut(
    path: Path, mapping: mmap.mmap, cut: Callable[[Path], None], name: str
) -> None:
    other = path.parent / "other"
    if name == "link":
        other.symlink_to(path)
    elif name != "same":
        os.link(path, other)
        if name == "removed":
            path.unlink()
    named = path if name == "same" else other
    with pytest.raises(forebay.RequestError, match="has it mapped at 0x") as refused:
        cut(named)
    assert refused.value.errno == errno.EBUSY and "rename" in (refused.value.hint or "")
    assert os.fsencode(refused.value.filename) == os.fsencode(named)
    assert named.read_bytes() == OLD and mapping[:] == OLD[65536:165536]


@pytest.mark.parametrize("name", ["same", "link", "hard link", "line\nbreak"])
def test_a_mapped_file_is_known_by_its_name_where_numbers_differ(
    path: Path, mapping: mmap.mmap, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on btrfs and overlayfs, of a file that cannot be read.
    def mappings() -> Iterator[tuple[str, str, _mapped._Mapped]]:
        for address, permissions, (_, inode, mapped) in known():
            yield address, permissions, ("00:fe", inode + "1", mapped)

    def no_mapping(*_: object) -> mmap.mmap:
        raise PermissionError(errno.EACCES, "no mapping")

    known = _mapped._mappings
    monkeypatch.setattr(_mapped, "_mappings", mappings)
    monkeypatch.setattr(mmap, "mmap", no_mapping)
    named = path if name == "same" else path.parent / name
    if name == "link":
        named.symlink_to(path)
    elif name == "hard link":
        os.link(path, named)
    elif name != "same":
        path.rename(named)
    for cut in CUTS:
        with pytest.raises(forebay.RequestError, match="has it mapped at 0x"):
            cut(named)
    assert named.read_bytes() == OLD
    other = path.parent / "other"
    other.write_bytes(OLD)
    forebay.open(other, "w").close()
    assert other.read_bytes() == b""


def test_a_mapping_for_comparison_does_not_count(path: Path) -> None:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 1, mmap.MAP_SHARED, 0):
        forebay.open(path, "w").close()
    assert path.read_bytes() == b""


def test_a_file_that_is_mapped_no_more_is_cut(path: Path, mapping: mmap.mmap) -> None:
    mapping.close()
    for cut in CUTS:
        path.write_bytes(OLD)
        cut(path)
        assert path.stat().st_size in (0, 800)


def test_other_mappings_do_not_disturb(path: Path, mapping: mmap.mmap) -> None:
    other = path.parent / "other"
    other.write_bytes(OLD)
    for file in [other, path.parent / "new"]:
        with forebay.open(file, "w") as opened:
            opened.write_from(mapping)
        assert file.read_bytes() == OLD[65536:165536]
    # What is not cut may be written.
    for mode in ["r+", "rw"]:
        with forebay.open(path, mode) as opened:
            opened.write_from(mapping, 65536)
    assert path.read_bytes() == OLD


def test_a_mapped_file_is_replaced_by_what_is_mapped_from_it(path: Path) -> None:
    torch = pytest.importorskip("torch", reason="no torch")
    import forebay.torch

    header = torch.arange(5, dtype=torch.uint8)
    mapped = torch.from_file(str(path), shared=True, size=len(OLD), dtype=torch.uint8)
    for save in [forebay.torch.save, forebay.torch.save_checkpoint]:
        path.write_bytes(OLD)
        mapped = torch.from_file(str(path), shared=True, size=len(OLD), dtype=torch.uint8)
        save(path, {"h": header, "m": mapped})
        assert path.read_bytes().endswith(bytes(range(5)) + OLD)
        assert bytes(mapped.numpy()) == OLD
    path.write_bytes(OLD)
    mapped = torch.from_file(str(path), shared=False, size=len(OLD), dtype=torch.uint8)
    assert forebay.torch.save(path, {"m": mapped, "h": header}, {"m": 5, "h": 0}, sync=False)
    assert path.read_bytes() == bytes(range(5)) + OLD
