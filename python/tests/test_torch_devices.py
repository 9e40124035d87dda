"""Models that one process loads to several devices."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="no torch")

from forebay.safetensors import _ranks, save_file  # noqa: E402  # after it is known
from forebay import EndOfFile, load_file  # noqa: E402

GPUS = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
DEVICES = GPUS if len(GPUS) > 1 else ["cpu", "cpu", "cpu"]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any]]:
    """A model in two files, of several windows."""
    monkeypatch.setattr(_ranks, "CHUNK", 1 << 20)
    tensors = {
        "a.half": torch.randn(1000, 333).half(),
        "a.empty": torch.empty(0, 4),
        "a.scalar": torch.tensor(3.5),
        "b.large": torch.randint(1 << 30, (3_000_001,), dtype=torch.int32),
        "b.odd": torch.randint(255, (333,), dtype=torch.uint8),
    }
    for file in "ab":
        own = {name: it for name, it in tensors.items() if name.startswith(file)}
        save_file(own, tmp_path / f"{file}.safetensors")
    return tmp_path, tensors


def same(loaded: list[dict[str, Any]], expected: dict[str, Any]) -> bool:
    """Whether each device has these tensors, in memory of its own."""
    first = list(expected)[0]
    assert len({own[first].data_ptr() for own in loaded}) == len(DEVICES)
    for device, own in zip(DEVICES, loaded, strict=True):
        assert own.keys() == expected.keys()
        assert all(str(it.device) == device for it in own.values())
        assert all(torch.equal(own[name].cpu(), it) for name, it in expected.items())
    return True


def test_each_device_has_all_tensors(model: Any) -> None:
    folder, tensors = model
    seen: list[tuple[int, int]] = []
    report: dict[str, Any] = {}
    started = time.monotonic()
    loaded = load_file(
        folder, DEVICES, progress=lambda *both: seen.append(both), report=report
    )
    assert report["seconds"]["elapsed"] <= time.monotonic() - started
    assert same(loaded, tensors)
    nbytes = sum(it.nbytes for it in tensors.values())
    assert report["bytes"] == nbytes
    assert sum(route["bytes"] for route in report["routes"]) == nbytes
    assert seen[-1][0] == seen[-1][1] >= nbytes
    [alone] = load_file(folder, DEVICES[:1])
    assert all(torch.equal(alone[name].cpu(), it) for name, it in tensors.items())


def test_parts_and_other_types(model: Any) -> None:
    folder, tensors = model
    floats = {name: it for name, it in tensors.items() if name.startswith("a.")}
    converted = {name: it.double() for name, it in floats.items()}
    assert same(load_file(folder, DEVICES, names="a.*", dtype=torch.float64), converted)
    half = {"a.half": tensors["a.half"][:, 111:222]}
    assert same(load_file(folder, DEVICES, names="a.half", shard=(1, 1, 3)), half)
    path = folder / "views.pt"
    whole = torch.arange(60.0).reshape(6, 10)
    views = {"rows": whole[1:4], "turned": whole.T, "tied": whole}
    torch.save(views, path)
    assert same(load_file(path, DEVICES), views)


def test_a_file_that_ends_early_is_an_error(model: Any) -> None:
    folder, _ = model
    path = folder / "b.safetensors"
    content = path.read_bytes()

    def cut(name: str, shape: Any) -> None:
        """Is called when the header has been read."""
        path.write_bytes(content[: len(content) // 2])

    with pytest.raises(EndOfFile, match=r"b\.large"):
        load_file(path, DEVICES, shard=cut)


@pytest.mark.parametrize("other", [{"rank": 0}, {"world_size": 2}, {"group": object()}])
def test_devices_and_processes_are_refused_together(model: Any, other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="several devices and"):
        load_file(model[0], DEVICES, **other)


def test_lists_that_cannot_be(model: Any) -> None:
    with pytest.raises(ValueError, match="empty list"):
        load_file(model[0], [])
    with pytest.raises(ValueError, match="framework"):
        load_file(model[0], ["cpu", "cpu"], framework="numpy")
