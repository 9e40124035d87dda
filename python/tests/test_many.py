"""Many reads and writes in one call, as tuples and as arrays."""

from __future__ import annotations

import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import pytest
from arrays import SimArray
from conftest import content

Data = tuple[Path, bytes]
Sim = Callable[[int], SimArray]

COUNT, PIECE = 200, 4096


@pytest.fixture
def files(engine: forebay.Engine, tmp_path: Path) -> list[tuple[forebay.File, bytes]]:
    made = []
    for number in range(3):
        bytes_ = content(COUNT * PIECE * 2, seed=number)
        (tmp_path / f"{number}").write_bytes(bytes_)
        made.append((engine.open(tmp_path / f"{number}"), bytes_))
    return made


def expected(files: list[tuple[forebay.File, bytes]]) -> bytes:
    parts = []
    for number in range(COUNT):
        at = (number * 7 % COUNT) * PIECE
        parts.append(files[number % 3][1][at : at + PIECE])
    return b"".join(parts)


def offsets() -> list[int]:
    return [(number * 7 % COUNT) * PIECE for number in range(COUNT)]


@pytest.mark.parametrize("on", ["host", "gpu"])
def test_tuples(
    engine: forebay.Engine, files: list[tuple[forebay.File, bytes]], sim: Sim, on: str
) -> None:
    if on == "host":
        host = bytearray(COUNT * PIECE)
        targets: list[Any] = [memoryview(host)[n * PIECE : (n + 1) * PIECE] for n in range(COUNT)]
    else:
        gpu = sim(COUNT * PIECE)
        targets = [gpu.buffer.address + n * PIECE for n in range(COUNT)]
    requests = (
        (files[n % 3][0], offset, PIECE, targets[n]) for n, offset in enumerate(offsets())
    )
    result = engine.read_many(requests, device=None if on == "host" else "sim")
    assert len(result) == COUNT and result.bytes == COUNT * PIECE and result.errors == {}
    assert result.counts == [PIECE] * COUNT and result[-1] == PIECE
    got = bytes(host) if on == "host" else gpu.tobytes()
    assert got == expected(files)


@pytest.mark.parametrize("kind", ["list", "array", "numpy", "numpy 32"])
@pytest.mark.parametrize("by", ["target", "addresses"])
def test_arrays(
    engine: forebay.Engine, files: list[tuple[forebay.File, bytes]], sim: Sim, kind: str, by: str
) -> None:
    def numbers(values: list[int]) -> Any:
        if kind == "list":
            return values
        if kind == "array":
            return array.array("q", values)
        np = pytest.importorskip("numpy", reason="no numpy")
        return np.array(values, np.int64 if kind == "numpy" else np.uint32)

    gpu = sim(COUNT * PIECE)
    at = [n * PIECE for n in range(COUNT)]
    memory: dict[str, Any]
    if by == "target":
        memory = {"target": gpu, "at": numbers(at)}
    else:
        base = gpu.buffer.address
        memory = {"addresses": array.array("Q", [base + a for a in at]), "device": "sim:0"}
    result = engine.read_many(
        files=[file for file, _ in files],
        file_of=numbers([n % 3 for n in range(COUNT)]),
        offsets=numbers(offsets()),
        lengths=numbers([PIECE] * COUNT),
        **memory,
    )
    assert result.bytes == COUNT * PIECE
    assert gpu.tobytes() == expected(files)


def test_written_pieces_are_read_back(
    engine: forebay.Engine, tmp_path: Path, sim: Sim
) -> None:
    gpu = sim(COUNT * PIECE)
    with engine.open(tmp_path / "x", "w") as file:
        source = content(COUNT * PIECE, seed=9)
        at = [n * PIECE for n in range(COUNT)]
        backwards = at[::-1]
        engine.write_many(
            files=file, offsets=backwards, lengths=[PIECE] * COUNT, source=source, at=at,
            sync="data",
        )
        engine.read_many(files=file, offsets=backwards, lengths=[PIECE] * COUNT, target=gpu, at=at)
        assert gpu.tobytes() == source
        other = tmp_path / "y"
        with engine.open(other, "w") as copy:
            copy.writev([(n * PIECE, PIECE, gpu.buffer.address + n * PIECE) for n in range(COUNT)],
                        device="sim")
        assert other.read_bytes() == source
    with engine.open(other) as copy:
        parts = [bytearray(10), bytearray(20)]
        assert copy.readv([(5, 10, parts[0]), (100, 20, parts[1])]).counts == [10, 20]
        assert parts == [source[5:15], source[100:120]]


@pytest.mark.parametrize("on", ["host", "gpu"])
def test_memory_in_a_list_counts_as_one(
    engine: forebay.Engine,
    files: list[tuple[forebay.File, bytes]],
    tmp_path: Path,
    sim: Sim,
    on: str,
) -> None:
    made: Any = sim if on == "gpu" else bytearray
    memory = [made(3000), made(5000), bytearray(), made(100)]
    at, lengths = [0, 2999, 3000, 8000], [2999, 1, 5000, 100]
    given = {"offsets": [5, 4000, 70, 9000], "lengths": lengths, "at": at}
    file, bytes_ = files[0]
    engine.read_many(files=file, target=memory, **given)
    found = b"".join(one.tobytes() if hasattr(one, "tobytes") else one for one in memory)
    assert found == bytes_[5:3004] + bytes_[4000:4001] + bytes_[70:5070] + bytes_[9000:9100]
    with engine.open(tmp_path / "x", "w") as other:
        engine.write_many(files=other, source=memory, **{**given, "offsets": at})
    assert (tmp_path / "x").read_bytes() == found
    for wrong in ([2999], [8100], [8200]):
        with pytest.raises(ValueError):
            engine.read_many(files=file, offsets=[0], lengths=[2], target=memory, at=wrong)
    with pytest.raises(ValueError, match="has no bytes"):
        engine.read_many(files=file, offsets=[0], lengths=[2], target=[], at=[0])
    with pytest.raises(TypeError, match="cannot read into `list`"):
        engine.read_many(files=file, offsets=[0], lengths=[2], target=[[bytearray(5)]], at=[0])


def test_each_request_has_its_own_end(
    engine: forebay.Engine, files: list[tuple[forebay.File, bytes]]
) -> None:
    (file, bytes_), target = files[0], bytearray(100)
    requests = [(file, 0, 10, target), (file, len(bytes_) - 5, 10, target), (file, 0, 0, target)]
    with pytest.raises(forebay.EndOfFile) as error:
        engine.read_many(requests)
    assert error.value.bytes == 5
    result = engine.read_many(requests, check=False)
    assert result.counts == [10, None, 0] and list(result.errors) == [1]
    assert "1 failed" in repr(result)
    with pytest.raises(forebay.EndOfFile):
        result[1]
    with pytest.raises(IndexError):
        result[3]
    assert engine.read_many(requests, exact=False).counts == [10, 5, 0]


def test_nothing_is_nothing(
    engine: forebay.Engine, files: list[tuple[forebay.File, bytes]]
) -> None:
    file = files[0][0]
    assert len(engine.read_many([])) == 0
    assert len(engine.read_many(files=file, offsets=[], lengths=[], target=bytearray(), at=[])) == 0
    result = engine.read_many([(file, 0, 0, 0), (file, 5, 0, 7)], device="sim")
    assert result.counts == [0, 0]


@pytest.mark.parametrize("call", ["read_many", "start_read_many"])
def test_calls_that_make_no_sense(
    engine: forebay.Engine, files: list[tuple[forebay.File, bytes]], sim: Sim, call: str
) -> None:
    read = getattr(engine, call)
    file, target = files[0][0], bytearray(100)
    one: dict[str, Any] = {"files": file, "offsets": [0], "lengths": [1], "target": target}
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception]]] = [
        ((), {}, TypeError),
        ((5,), {}, TypeError),
        (([(file, 0, 1)],), {}, TypeError),
        (([[file, 0, 1, target]],), {}, TypeError),
        (([("file", 0, 1, target)],), {}, TypeError),
        (([(file, -1, 1, target)],), {}, ValueError),
        (([(file, 0, -1, target)],), {}, ValueError),
        (([(file, 0, 101, target)],), {}, ValueError),
        (([(file, 0, 1, b"read-only")],), {}, BufferError),
        (([(file, 0, 1, 4096)],), {}, TypeError),
        (([(file, 0, 1, -1)],), {}, forebay.RequestError),
        (([(file, 0, 1, 1 << 64)],), {"device": "sim"}, forebay.RequestError),
        (([(file, 0, 1, target)],), {"files": file}, TypeError),
        ((), {**one}, TypeError),
        ((), {**one, "at": [100]}, ValueError),
        ((), {**one, "at": [-1]}, ValueError),
        ((), {**one, "at": [0, 1]}, ValueError),
        ((), {**one, "at": [0.5]}, TypeError),
        ((), {**one, "at": array.array("d", [0])}, TypeError),
        ((), {**one, "at": [0], "file_of": [1]}, ValueError),
        ((), {**one, "at": [0], "files": [file, file]}, ValueError),
        ((), {**one, "at": [0], "files": [1]}, TypeError),
        ((), {**one, "at": [0], "stream": "next"}, TypeError),
        ((), {**one, "at": [0], "stream": 0}, forebay.RequestError),
        ((), {"files": file, "offsets": [0], "lengths": [1], "addresses": [1]}, TypeError),
    ]
    for arguments, keywords, kind in wrong:
        with pytest.raises(kind):
            read(*arguments, **keywords)
    with pytest.raises(TypeError, match=r"a request is `\(file, offset, length, memory\)`"):
        read([(file, "0", 1, target)])
    beyond = sim(100).buffer.address + (1 << 40)
    with pytest.raises(forebay.Error):
        read([(file, 0, 1, beyond)], device="sim")
    file.close()
    with pytest.raises(ValueError, match="is closed"):
        read([(file, 0, 1, target)])


def test_iterators_lose_no_request(
    engine: forebay.Engine, files: list[tuple[forebay.File, bytes]]
) -> None:
    def read(first: Any) -> forebay.ManyResult:
        numbers = (iter([first, PIECE]) for _ in range(3))
        offsets, lengths, at = numbers
        target = bytearray(4 * PIECE)
        return engine.read_many(
            files=files[0][0], offsets=offsets, lengths=lengths, at=at, target=target
        )

    assert read(PIECE).counts == [PIECE] * 2
    with pytest.raises(TypeError, match="whole numbers"):
        read(float(PIECE))


def test_memory_without_end_is_refused(
    engine: forebay.Engine, files: list[tuple[forebay.File, bytes]]
) -> None:
    with pytest.raises(ValueError, match="more than 2.64 bytes"):
        engine.read_many(
            files=files[0][0], offsets=[0], lengths=[1], at=[0], target=[(1, 2**64 - 2, "cpu")] * 2
        )


def test_a_file_of_another_engine_is_refused(
    engine: forebay.Engine, files: list[tuple[forebay.File, bytes]]
) -> None:
    other = forebay.Engine()
    for read in [other.read_many, other.start_read_many]:
        with pytest.raises(forebay.RequestError, match="another engine"):
            read([(files[0][0], 0, 1, bytearray(1))])
