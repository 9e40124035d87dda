"""Arrays of other libraries on a real GPU, and the order of their streams."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import content, program
from test_safetensors_ranks import STAGES, in_group, kill, world

torch: Any = pytest.importorskip("torch", reason="no torch")

if not torch.cuda.is_available():
    if os.environ.get("FOREBAY_REQUIRE_GPU") == "1":
        raise RuntimeError("a GPU is required, and torch sees none")
    pytest.skip("torch sees no GPU", allow_module_level=True)

Data = tuple[Path, bytes]

LEN = 64 << 20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Data:
    path, bytes_ = tmp_path_factory.mktemp("large") / "data", content(LEN)
    path.write_bytes(bytes_)
    return path, bytes_


def host(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).cpu().numpy())


TYPES = ["uint8", "bool", "int64", "float16", "bfloat16", "float32", "complex64", "float8_e4m3fn"]


@pytest.mark.parametrize("name", TYPES)
def test_tensors_of_every_type(
    engine: forebay.Engine, large: Data, tmp_path: Path, name: str
) -> None:
    path, bytes_ = large
    bytes_ = bytes(256) if name == "bool" else bytes_  # no other bytes are truth values
    kind = getattr(torch, name)
    tensor = torch.empty(1000, dtype=kind, device="cuda")
    nbytes = tensor.numel() * tensor.element_size()
    (tmp_path / "source").write_bytes((bytes_ * 40)[: nbytes + 7])
    with engine.open(tmp_path / "source") as file:
        assert file.read_into(tensor, 7) == nbytes
    assert host(tensor) == (bytes_ * 40)[7 : nbytes + 7]
    with engine.open(tmp_path / "copy", "w") as copy:
        copy.write_from(tensor)
    assert (tmp_path / "copy").read_bytes() == (bytes_ * 40)[7 : nbytes + 7]


def test_views_with_an_offset_and_those_that_are_not_in_one_piece(
    engine: forebay.Engine, large: Data
) -> None:
    path, bytes_ = large
    whole = torch.zeros(100, 16, dtype=torch.int32, device="cuda")
    with engine.open(path) as file:
        file.read_into(whole[10:20])
        assert host(whole[10:20]) == bytes_[:640]
        assert not host(whole[:10]).strip(b"\0") and not host(whole[20:]).strip(b"\0")
        for scattered in [whole[:, 3], whole.t(), whole[::2]]:
            with pytest.raises(BufferError, match="contiguous"):
                file.read_into(scattered)
        lazy = torch.zeros(4, dtype=torch.complex64, device="cuda").conj()
        with pytest.raises(BufferError, match="resolve_conj"):
            file.read_into(lazy)
        with pytest.raises((BufferError, RuntimeError, NotImplementedError)):
            file.read_into(torch.zeros(4, device="meta"))
        assert file.read_into(torch.zeros(0, device="cuda")) == 0
        needs = torch.zeros(4, device="cuda", requires_grad=True)
        assert file.read_into(needs.detach()) == 16


def test_memory_of_the_host_that_torch_has(engine: forebay.Engine, large: Data) -> None:
    path, bytes_ = large
    with engine.open(path) as file:
        for pinned in [False, True]:
            tensor = torch.empty(1 << 20, dtype=torch.uint8, pin_memory=pinned)
            file.read_into(tensor, 5)
            assert host(tensor) == bytes_[5 : 5 + (1 << 20)]


def test_a_large_read_and_its_way(engine: forebay.Engine, large: Data) -> None:
    path, bytes_ = large
    tensor = torch.empty(LEN, dtype=torch.uint8, device="cuda")
    with engine.open(path) as file:
        transfer = file.start_read_into(tensor)
        assert transfer.result(60) == LEN
    assert host(tensor) == bytes_
    report = transfer.report()
    assert sum(share["bytes"] for share in report["routes"]) == LEN
    assert {share["route"] for share in report["routes"]} <= {"staged", "cached", "direct"}


def busy(tensor: Any, value: int) -> None:
    """Queues a long kernel, and a write to the tensor behind it."""
    torch.cuda._sleep(200_000_000)  # about a tenth of a second
    tensor.fill_(value)


@pytest.mark.parametrize("waits", [True, False])
def test_work_that_torch_has_queued_runs_first(
    engine: forebay.Engine, large: Data, tmp_path: Path, waits: bool
) -> None:
    path, bytes_ = large
    side = torch.cuda.Stream()
    for stream in [torch.cuda.current_stream(), side]:
        with torch.cuda.stream(stream), engine.open(path) as file:
            tensor = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
            busy(tensor, 7)
            if waits:
                file.read_into(tensor)
            else:
                file.start_read_into(tensor).result(60)
            assert host(tensor) == bytes_[: 1 << 20], "the kernel came last"
            busy(tensor, 9)
            with engine.open(tmp_path / "copy", "w") as copy:
                copy.write_from(tensor)
            assert (tmp_path / "copy").read_bytes() == bytes([9]) * (1 << 20)


def test_a_transfer_in_the_order_of_a_stream(engine: forebay.Engine, large: Data) -> None:
    path, bytes_ = large
    stream = torch.cuda.Stream()
    with engine.open(path) as file:
        tensor = torch.zeros(LEN, dtype=torch.uint8, device="cuda")
        other = torch.zeros_like(tensor)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            busy(tensor, 7)
            transfer = file.start_read_into(tensor, stream=stream)
            other.copy_(tensor)
        assert not transfer.done(), "the kernel is still under way"
        assert transfer.result(60) == LEN
        stream.synchronize()
        assert host(other) == bytes_
        assert file.read_into(tensor, stream=stream.cuda_stream, size=100) == 100


def test_many_requests_in_the_order_of_a_stream(
    engine: forebay.Engine, large: Data, tmp_path: Path
) -> None:
    path, bytes_ = large
    count, piece = 2000, 4096
    stream = torch.cuda.Stream()
    at = [n * piece for n in range(count)]
    offsets = [n * 3 * piece for n in range(count)][::-1]
    expected = b"".join(bytes_[offset : offset + piece] for offset in offsets)
    arrays: dict[str, Any] = {"offsets": offsets, "lengths": [piece] * count, "at": at}
    with engine.open(path) as file, engine.open(tmp_path / "copy", "w") as copy:
        tensor = torch.zeros(count * piece, dtype=torch.uint8, device="cuda")
        other = torch.zeros_like(tensor)
        file.read_into(other, stream=stream)  # its pinned memory is there from now on
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            busy(tensor, 7)
            transfer = engine.start_read_many(files=file, target=tensor, stream=stream, **arrays)
            other.copy_(tensor)
        assert not transfer.done(), "the kernel is still under way"
        assert transfer.result(60).counts == [piece] * count
        stream.synchronize()
        assert host(other) == expected
        arrays["offsets"] = at
        with torch.cuda.stream(stream):
            busy(tensor, 9)
            tensor.copy_(other)
            written = engine.start_write_many(files=copy, source=tensor, stream=stream, **arrays)
            busy(tensor, 11)
        assert written.result(60).bytes == count * piece
        torch.cuda.synchronize()
    assert (tmp_path / "copy").read_bytes() == expected


def test_a_tensor_is_marked_as_used_by_the_stream(
    engine: forebay.Engine, large: Data, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, bytes_ = large
    marks: list[Any] = []
    record = torch.Tensor.record_stream

    def noted(tensor: Any, stream: Any) -> None:
        marks.append(stream)
        record(tensor, stream)

    monkeypatch.setattr(torch.Tensor, "record_stream", noted)
    stream = torch.cuda.Stream()
    with engine.open(path) as file:
        tensor = torch.zeros(1000, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        file.read_into(tensor, stream=stream)
        for raw in [stream.cuda_stream, 0, 1]:
            file.read_into(tensor, stream=raw)
        file.read_into(tensor)
    assert marks[0] is stream
    handles = [mark.cuda_stream for mark in marks]
    assert handles == [stream.cuda_stream, stream.cuda_stream, 0, 0]
    assert host(tensor) == bytes_[:1000]


def test_a_stream_that_is_captured_is_refused(engine: forebay.Engine, large: Data) -> None:
    path, _ = large
    tensor = torch.zeros(1000, dtype=torch.uint8, device="cuda")
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with engine.open(path) as file, torch.cuda.graph(graph, stream=stream):
        with pytest.raises(forebay.Error, match="captur"):
            file.start_read_into(tensor, stream=stream)
        with pytest.raises(forebay.Error, match="captur"):
            file.read_into(tensor)
        tensor.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    assert host(tensor) == b"\1" * 1000


def test_a_tensor_is_kept_while_its_bytes_move(engine: forebay.Engine, large: Data) -> None:
    path, bytes_ = large
    torch.cuda.empty_cache()
    stream = torch.cuda.Stream()
    with engine.open(path) as file:
        for _ in range(10):
            tensor = torch.zeros(LEN, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(20_000_000)
            transfer = file.start_read_into(tensor, stream=stream)
            address = tensor.data_ptr()
            del tensor
            gc.collect()
            intruder = torch.full((LEN,), 3, dtype=torch.uint8, device="cuda")
            assert intruder.data_ptr() != address, "its memory was given away"
            assert transfer.result(60) == LEN
            assert host(intruder) == b"\3" * LEN


def test_a_tensor_that_is_freed_is_no_target(engine: forebay.Engine, large: Data) -> None:
    path, _ = large
    torch.cuda.empty_cache()
    tensor = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    address = tensor.data_ptr()
    del tensor
    torch.cuda.empty_cache()
    with engine.open(path) as file, pytest.raises(forebay.Error):
        file.read_into((address, 512 << 20, "cuda:0"), exact=False)


def test_memory_on_another_device_than_requested(engine: forebay.Engine, large: Data) -> None:
    path, _ = large
    tensor = torch.empty(100, dtype=torch.uint8, device="cuda")
    with engine.open(path) as file:
        for device in ["cuda:1", "sim:0"]:
            with pytest.raises((ValueError, forebay.Error)):
                file.read_into((tensor.data_ptr(), 100, device))
        with pytest.raises(forebay.Error):
            engine.read_many([(file, 0, 100, tensor.data_ptr() + (1 << 44))], device="cuda:0")


def test_buffers_become_tensors(engine: forebay.Engine, large: Data) -> None:
    path, bytes_ = large
    buffer = engine.read(path, "cuda:0")
    tensor = torch.from_dlpack(buffer)
    assert tensor.is_cuda and tensor.dtype == torch.uint8
    del buffer
    gc.collect()
    assert host(tensor) == bytes_
    assert forebay.read(path).device == "cuda:0", "the first GPU by default"


def test_many_pieces_to_scattered_places(engine: forebay.Engine, large: Data) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    path, bytes_ = large
    count, piece = 1000, 65_536
    tensor = torch.zeros(count * piece, dtype=torch.uint8, device="cuda")
    order = np.random.default_rng(1).permutation(count).astype(np.int64)
    with engine.open(path) as file:
        done = engine.read_many(
            files=file,
            offsets=np.arange(count, dtype=np.int64) * piece,
            lengths=np.full(count, piece),
            addresses=(tensor.data_ptr() + order * piece).astype(np.uint64),
            device="cuda:0",
        )
    assert done.bytes == count * piece
    got = host(tensor)
    for number in range(0, count, 37):
        at = int(order[number]) * piece
        assert got[at : at + piece] == bytes_[number * piece : (number + 1) * piece]


def test_arrays_of_cupy(engine: forebay.Engine, large: Data, tmp_path: Path) -> None:
    cupy = pytest.importorskip("cupy", reason="no cupy")
    path, bytes_ = large
    with engine.open(path) as file:
        array = cupy.zeros((100, 50), cupy.float32)
        assert file.read_into(array, 3) == 20_000
        assert array.tobytes() == bytes_[3:20_003]
        columns = cupy.zeros((10, 20), cupy.int16, order="F")
        file.read_into(columns)
        with pytest.raises(BufferError, match="not contiguous"):
            file.read_into(array[:, 3])
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            array += 1
            transfer = file.start_read_into(array, stream=stream)
            copy = array.copy()
        assert transfer.result(60) == 20_000
        stream.synchronize()
        assert copy.tobytes() == bytes_[:20_000]
    with engine.open(tmp_path / "copy", "w") as file:
        file.write_from(copy)
    assert (tmp_path / "copy").read_bytes() == bytes_[:20_000]
    assert cupy.from_dlpack(engine.read(path, "cuda:0")).tobytes() == bytes_


def test_arrays_of_jax_are_sources(engine: forebay.Engine, large: Data, tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", reason="no jax")
    path, bytes_ = large
    array = jax.dlpack.from_dlpack(engine.read(path, "cuda:0"))
    assert array.shape == (LEN,)
    with engine.open(tmp_path / "copy", "w") as file:
        file.write_from(array)
        with pytest.raises(BufferError, match="jax"):
            file.read_into(array)
    assert (tmp_path / "copy").read_bytes() == bytes_


def test_arrays_of_numba(engine: forebay.Engine, large: Data) -> None:
    cuda = pytest.importorskip("numba.cuda", reason="no numba with CUDA")
    path, bytes_ = large
    array = cuda.device_array(10_000, "u1")
    with engine.open(path) as file:
        file.read_into(array, 11)
        assert array.copy_to_host().tobytes() == bytes_[11:10_011]
        stream = cuda.stream()
        file.read_into(array, 12, stream=stream)
    assert array.copy_to_host().tobytes() == bytes_[12:10_012]


def test_segments_of_torchs_expandable_allocator(large: Data) -> None:
    import subprocess
    import sys

    code = """
import sys, torch, forebay
path = sys.argv[1]
with forebay.open(path) as file:
    tensors = [torch.empty(20_000_000, dtype=torch.uint8, device="cuda") for _ in range(3)]
    for tensor in tensors:
        assert file.read_into(tensor, 1) == 20_000_000
    expected = open(path, "rb").read()[1:20_000_001]
    assert all(bytes(t.cpu().numpy()) == expected for t in tensors)
"""
    program(
        code, large[0], env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    )


def of_its_gpu(rank: int, path: Path) -> Any:
    """A load to the current GPU, which is not the first one for rank 1 if there are several."""
    from forebay.safetensors import _group, iterate, load_file

    torch.cuda.set_device(rank % torch.cuda.device_count())
    _group.CHUNK = 1 << 20
    before, slots = _group.Slots.map, []

    def mapped(self: Any, handles: list[str]) -> None:
        slots.append(self._memory.own.device.index)
        before(self, handles)

    _group.Slots.map = mapped  # type: ignore[method-assign]
    expected, own = load_file(path, "cpu"), torch.cuda.current_device()
    for found in (
        load_file(path, "cuda", group=world()),
        dict(iterate(path, device="cuda", window="16MiB", group=world())),
    ):
        assert all(torch.equal(found[name].cpu(), one) for name, one in expected.items())
        assert {one.device.index for one in found.values()} == {own}
    return slots == [own, own]


def test_ranks_load_to_their_own_gpu(tmp_path: Path) -> None:
    tensors = {str(number): torch.rand(1000 + number, 3000) for number in range(8)}
    forebay.save_file(tensors, tmp_path / "model.safetensors")
    found = in_group(tmp_path, 2, of_its_gpu, tmp_path / "model.safetensors")
    assert found == [True, True], found


@pytest.mark.parametrize("stage", STAGES)
def test_a_rank_that_is_killed_is_named(tmp_path: Path, stage: str) -> None:
    if "Collective" in stage and torch.cuda.device_count() < 2:
        pytest.skip("there is one GPU")
    tensors = {str(number): torch.rand(1000, 1000) for number in range(8)}
    forebay.save_file(tensors, tmp_path / "model.safetensors")
    kill(stage, tmp_path / "model.safetensors", tmp_path, "cuda")
