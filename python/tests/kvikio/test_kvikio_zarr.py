"""The store of zarr 3."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="no numpy")
zarr = pytest.importorskip("zarr", minversion="3", reason="no zarr 3")

from forebay.kvikio.zarr import GDSStore
from zarr.abc.store import OffsetByteRequest, RangeByteRequest, SuffixByteRequest
from zarr.core.buffer.core import default_buffer_prototype


def test_an_array_is_written_and_read_again(tmp_path: Path) -> None:
    numbers = np.arange(10_000, dtype="i4").reshape(100, 100)
    store = GDSStore(tmp_path / "array")
    written = zarr.create_array(store, shape=(100, 100), chunks=(30, 40), dtype="i4")
    written[:] = numbers
    assert (zarr.open_array(GDSStore(tmp_path / "array"), mode="r")[:] == numbers).all()
    # What it wrote zarr's own store reads, and the other way round.
    own = zarr.storage.LocalStore(tmp_path / "array")
    assert (zarr.open_array(own, mode="r+")[5:50, 7] == numbers[5:50, 7]).all()
    zarr.open_array(own, mode="r+")[0, 0] = 77
    assert zarr.open_array(store, mode="r")[0, 0] == 77
    assert not list((tmp_path / "array").rglob("*.partial"))


def test_a_group_and_its_attributes_are_kept(tmp_path: Path) -> None:
    group = zarr.open_group(GDSStore(tmp_path), mode="w")
    group.attrs["unit"] = "m"
    group.create_array("depth", shape=(5,), dtype="f8")[:] = 2.5
    again = zarr.open_group(GDSStore(tmp_path), mode="r")
    assert again.attrs["unit"] == "m" and again["depth"][:].sum() == 12.5


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        (None, b"0123456789"),
        (RangeByteRequest(2, 5), b"234"),
        (RangeByteRequest(8, 20), b"89"),
        (RangeByteRequest(20, 30), b""),
        (OffsetByteRequest(7), b"789"),
        (OffsetByteRequest(70), b""),
        (SuffixByteRequest(3), b"789"),
        (SuffixByteRequest(30), b"0123456789"),
    ],
)
def test_parts_are_cut_as_slices_are(tmp_path: Path, requested: Any, expected: bytes) -> None:
    (tmp_path / "key").write_bytes(b"0123456789")
    got = asyncio.run(GDSStore(tmp_path).get("key", default_buffer_prototype(), requested))
    assert got is not None and got.to_bytes() == expected


def test_a_missing_key_is_none(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")

    async def get(key: str) -> Any:
        return await GDSStore(tmp_path).get(key)

    assert [asyncio.run(get(key)) for key in ("none", "folder", "file/below")] == [None] * 3
    assert asyncio.run(get("file")).to_bytes() == b""


def test_an_existing_key_is_not_set_again(tmp_path: Path) -> None:
    value = default_buffer_prototype().buffer.from_bytes

    async def steps() -> None:
        store = await GDSStore.open(tmp_path)
        await store.set_if_not_exists("key", value(b"first"))
        await store.set_if_not_exists("key", value(b"second"))
        assert (tmp_path / "key").read_bytes() == b"first"
        await store.set("key", value(b"third"))
        with pytest.raises(TypeError, match="Buffer instance"):
            await store.set("key", b"bytes")

    asyncio.run(steps())
    assert (tmp_path / "key").read_bytes() == b"third"
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_a_store_for_reading_is_not_written(tmp_path: Path) -> None:
    store = GDSStore(tmp_path, read_only=True)
    with pytest.raises(ValueError, match="read-only"):
        asyncio.run(store.set("key", default_buffer_prototype().buffer.from_bytes(b"1")))


def test_another_kind_of_request_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"1")
    with pytest.raises(TypeError, match="byte_range"):
        asyncio.run(GDSStore(tmp_path).get("key", None, (0, 1)))
