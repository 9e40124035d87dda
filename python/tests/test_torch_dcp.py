"""Checkpoints of `torch.distributed.checkpoint`: ours and torch's, each read by the other."""

from __future__ import annotations

import io
import os
import pickle
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay.safetensors import FormatError
from tensors import torch_or_skip

torch = torch_or_skip()
dcp = pytest.importorskip("torch.distributed.checkpoint", reason="no torch.distributed")
from forebay.torch.dcp import Reader, Writer, _item, _metadata  # noqa: E402
from forebay.torch.dcp._frame import frame  # noqa: E402
from forebay.torch.dcp._item import PEEK, Refused, located  # noqa: E402

CheckpointException = pytest.importorskip("torch.distributed.checkpoint.api").CheckpointException

KNOBS = [("SEED", 0), ("STRESS", 1)]
DAILY = 1000

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:Detected an existing checkpoint"),
]

TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
    torch.uint16, torch.uint32, torch.bool, torch.complex64, torch.complex128,
]


def bits(tensor: Any) -> Any:
    """What can be compared of a tensor of any type."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def values(shape: Any, dtype: Any, seed: int) -> Any:
    """A tensor with bytes that differ."""
    generator = torch.Generator().manual_seed(seed)
    most = 2 if dtype == torch.bool else 256
    row = torch.empty(shape, dtype=dtype)
    raw = torch.randint(0, most, (row.numel() * row.itemsize,), generator=generator)
    return raw.to(torch.uint8).view(dtype).reshape(shape)


def some_state() -> dict[str, Any]:
    """A state with every kind of value."""
    state: dict[str, Any] = {
        str(dtype): values((3, 5), dtype, seed) for seed, dtype in enumerate(TYPES)
    }
    state |= {
        "large": values((300, 1024), torch.float32, 30),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 7),
        "turned": values((6, 4), torch.float32, 31).t(),
        "part": values((10, 4), torch.float32, 32)[3:7],
        "epoch": 3,
        "text": {"name": "a", "list": [1, 2.5, None]},
    }
    return state


def blank(state: Any) -> Any:
    """The same with other values."""
    if isinstance(state, dict):
        return {name: blank(value) for name, value in state.items()}
    if isinstance(state, list):
        return [blank(value) for value in state]
    return torch.zeros_like(state) if isinstance(state, torch.Tensor) else "unset"


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return one.shape == other.shape and torch.equal(bits(one), bits(other))
    return bool(one == other)


@contextmanager
def refused(match: str) -> Iterator[None]:
    """Torch raises an exception of its own around ours."""
    with pytest.raises(CheckpointException) as error:
        yield
    ((cause, _),) = error.value.failures.values()
    assert isinstance(cause, FormatError), repr(cause)
    assert re.search(match, str(cause)) and len(str(cause)) < 600, str(cause)


def save(folder: Path, state: Any, **options: Any) -> None:
    dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, **options), no_dist=True)


def load(folder: Path, state: Any, **options: Any) -> Reader:
    reader = Reader(folder, **options)
    dcp.load(state, storage_reader=reader, no_dist=True)
    return reader


def items(folder: Path) -> dict[str, Any]:
    """Where the items of a checkpoint lie, by their names."""
    stored = dcp.FileSystemReader(folder).read_metadata().storage_data
    return {index.fqn: info for index, info in stored.items()}


def change(folder: Path, **changes: Any) -> None:
    """Changes the metadata."""
    path = folder / ".metadata"
    found = pickle.loads(path.read_bytes())
    for name, value in changes.items():
        setattr(found, name, value(getattr(found, name)))
    path.write_bytes(pickle.dumps(found))


def test_the_reader_reads_what_torch_wrote(tmp_path: Path) -> None:
    state = some_state()
    save(tmp_path, state)
    loaded = blank(state)
    reader = load(tmp_path, loaded)
    assert same(state, loaded)
    tensors = [value for value in state.values() if isinstance(value, torch.Tensor)]
    # Torch itself reads the type that safetensors does not have.
    own = [tensor for tensor in tensors if tensor.dtype != torch.complex128]
    assert sum(one["bytes"] for one in reader.report()) == sum(one.nbytes for one in own)


def test_several_files_and_an_optimizer(tmp_path: Path) -> None:
    def trained(seed: int) -> dict[str, Any]:
        weights = {f"layer.{n}": values((8, 16), torch.float32, seed + n) for n in range(4)}
        state = {
            n: {"step": torch.tensor(5.0), "exp_avg": values((8, 16), torch.float32, seed - n)}
            for n in range(4)
        }
        groups = [{"lr": 0.1 * seed, "betas": (0.9, 0.999), "params": [0, 1, 2, 3]}]
        return {"model": weights, "optimizer": {"state": state, "param_groups": groups}}

    state, loaded = trained(10), trained(20)
    save(tmp_path, state, thread_count=3)
    load(tmp_path, loaded)
    assert same(state, loaded) and loaded["optimizer"]["param_groups"][0]["lr"] == 1.0


def test_targets_that_are_not_in_one_piece(tmp_path: Path) -> None:
    state = {"a": values((6, 4), torch.float32, 1), "b": torch.arange(4.0)}
    save(tmp_path, state)
    backing = torch.zeros(6, 8)
    loaded = {"a": backing[:, 2:6], "b": torch.zeros(4, dtype=torch.float64)}
    load(tmp_path, loaded)
    assert same(loaded["a"], state["a"]) and loaded["b"].tolist() == [0, 1, 2, 3]
    assert backing[:, :2].eq(0).all() and backing[:, 6:].eq(0).all()


def test_a_part_of_the_rows_reads_only_these(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

    whole = values((1000, 64), torch.float32, 1)
    save(tmp_path, {"a": whole})
    planner = dcp.DefaultLoadPlanner()

    def read(offsets: tuple[int, int], lengths: tuple[int, int]) -> tuple[Any, int]:
        target = {"a": torch.zeros(lengths)}
        reader = Reader(tmp_path)
        metadata = reader.read_metadata()
        planner.set_up_planner(target, metadata)
        reader.set_up_storage_reader(metadata, True)
        (stored,) = metadata.storage_data
        size = torch.Size
        item = ReadItem(
            LoadItemType.TENSOR, MetadataIndex("a"), size((0, 0)), stored, size(offsets),
            size(lengths),
        )
        reader.read_data(LoadPlan([item]), planner).wait()
        return target["a"], sum(one["bytes"] for one in reader.report())

    rows, count = read((100, 0), (50, 64))
    assert same(rows, whole[100:150]) and count == rows.nbytes
    columns, count = read((100, 8), (50, 16))
    assert same(columns, whole[100:150, 8:24]) and count < 50 * 64 * 4
    with pytest.raises(FormatError, match=r"the item `a` .* not the part of \[50, 64\] from \[990"):
        read((990, 0), (50, 64))


def test_tensors_that_are_not_plain_are_left_to_torch(tmp_path: Path) -> None:
    value = torch.tensor([1 + 2j, 3 + 4j]).conj()
    save(tmp_path, {"a": value})
    loaded = {"a": torch.zeros(2, dtype=torch.complex64)}
    reader = load(tmp_path, loaded)
    assert torch.equal(loaded["a"], value) and reader.report() == []


class Runs:
    """A pickle that would run code."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("ran",))


def test_no_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path, {"a": torch.ones(3), "b": Runs})
    loaded = {"a": torch.zeros(3), "b": None}
    with refused("the item `b` .* it may run code.*weights_only=False"):
        load(tmp_path, loaded)
    load(tmp_path, loaded, weights_only=False)
    assert loaded["b"] is Runs
    change(tmp_path, planner_data=lambda _: Runs())
    with pytest.raises(FormatError, match="`posix.mkdir`, which may run code"):
        Reader(tmp_path).read_metadata()
    with pytest.raises(CheckpointException):  # torch 2.11 says only that it has no metadata
        load(tmp_path, loaded)
    assert not Path("ran").exists()


def test_numbers_of_numpy_are_loaded(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    kinds = "float64 float32 float16 int64 int8 uint16 bool complex64".split()
    state = {kind: numpy.ones(1, kind)[0] for kind in kinds}
    state |= {"big": numpy.array([3], ">i4")[0], "nested": {"steps": [numpy.int64(7), 8]}}
    save(tmp_path, state)
    change(tmp_path, planner_data=lambda found: {**found, "step": (numpy.int64(3),)})
    loaded: dict[str, Any] = {**dict.fromkeys(state), "nested": {"steps": [None, None]}}
    reader = load(tmp_path, loaded)
    assert same(state, loaded)
    assert all(type(loaded[name]) is type(state[name]) for name in [*kinds, "big"])
    assert reader.read_metadata().planner_data["step"] == (3,)


class Wrong:
    """A pickle that makes a value of NumPy that is no number."""

    def __init__(self, call: Any, *given: Any, state: Any = None) -> None:
        self.made = (call, given) if state is None else (call, given, state)

    def __reduce__(self) -> Any:
        return self.made


def test_other_values_of_numpy_are_refused(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    scalar = numpy.float64(1).__reduce__()[0]
    flags = (3, "|", None, None, None, -1, -1, 0)
    for wrong in [
        numpy.ones(3),
        numpy.str_("text"),
        numpy.datetime64("2020-01-01"),
        Wrong(numpy.dtype, "O", False, True, state=flags),
        Wrong(numpy.dtype, "f8", False, False, state=(3, ">", None, None, None, -1, -1, 0)),
        Wrong(numpy.dtype, "f8", False, True, state=(3, "<", None, None, None, 99, -1, 0)),
        Wrong(numpy.dtype, "f8", False, True, state=(3, "<", None, ("a",), {}, -1, -1, 0)),
        Wrong(scalar, numpy.dtype("f8"), b"1234567"),
        Wrong(scalar, numpy.dtype("O"), b"12345678"),
    ]:
        save(tmp_path, {"a": wrong})
        with refused("the item `a` .* it may run code, or is broken"):
            load(tmp_path, {"a": None})
        change(tmp_path, planner_data=lambda _, wrong=wrong: wrong)
        with pytest.raises(FormatError, match="cannot load `.*metadata`"):
            Reader(tmp_path).read_metadata()


def test_metadata_takes_no_memory_for_its_claims(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(3)})
    for claim in (b"r\xff\xff\xff\xff", b"p4294967295\n"):
        (tmp_path / ".metadata").write_bytes(b"\x80\x04N" + claim + b".")
        with pytest.raises(FormatError, match="numbers an object 4294967295|the opcode 0x70"):
            Reader(tmp_path).read_metadata()


def test_a_cut_of_metadata_is_no_matter_of_trust(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(3)})
    path = tmp_path / ".metadata"
    whole = path.read_bytes()
    for end in (0, 1, 7, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(FormatError, match="truncated.*saved completely") as error:
            Reader(tmp_path).read_metadata()
        assert "weights_only" not in str(error.value)


def test_operations_across_the_end_of_a_frame_are_refused(tmp_path: Path) -> None:
    # CPython drops the rest of a frame that an operand crosses, and reads on after it.
    hidden = b"Nr\xff\xff\xff\x03."
    content = b"\x80\4\x95\7" + bytes(7) + b"\x8c\7aaaaabbB" + len(hidden).to_bytes(4, "little")
    (tmp_path / ".metadata").write_bytes(content + hidden + b".")
    with pytest.raises(FormatError, match="crosses the end of its frame"):
        Reader(tmp_path).read_metadata()


def test_an_object_is_loaded_as_it_was_checked(tmp_path: Path) -> None:
    class Planner(dcp.DefaultLoadPlanner):  # type: ignore[misc]
        def load_bytes(self, item: Any, value: Any) -> None:
            seen.append(value.getvalue())
            super().load_bytes(item, value)

    seen: list[bytes] = []
    save(tmp_path, {"a": {"b": [1, 2]}, "c": "x"})
    info = items(tmp_path)["c"]
    path = tmp_path / info.relative_path
    loaded: dict[str, Any] = {"a": {"b": [0, 0]}, "c": None}
    dcp.load(loaded, storage_reader=Reader(tmp_path), planner=Planner(), no_dist=True)
    assert loaded == {"a": {"b": [1, 2]}, "c": "x"} and seen
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"X\x01\0\0\0x", b"X\x02\0\0\0x"))
    with refused("the item `c` .* is broken"):
        load(tmp_path, loaded)


def test_metadata_changes_no_class(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.metadata import StorageMeta

    save(tmp_path, {"a": torch.ones(3)})
    found = b"\x80\x04c" + f"{StorageMeta.__module__}\nStorageMeta\n".encode()
    (tmp_path / ".metadata").write_bytes(found + b"N}\x8c\x03nowK\x01s\x86b.")
    with pytest.raises(FormatError, match="changes an object that is complete"):
        Reader(tmp_path).read_metadata()
    assert not hasattr(StorageMeta, "now")


class Allowed:
    """A class of planner data that a program allows, or does not."""

    def __init__(self, *given: Any) -> None:
        self.given = given

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Allowed) and vars(self) == vars(other)


class AllowedList(list):  # type: ignore[type-arg]
    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __reduce__(self) -> Any:
        return AllowedList, (), 7, iter(self)


class AllowedDict(dict):  # type: ignore[type-arg]
    def __reduce__(self) -> Any:
        return AllowedDict, ([("a", 1)],), None, None, iter(self.items())


@pytest.mark.parametrize("value", [Allowed(), Allowed(1, [2]), AllowedList("ab"), AllowedDict(b=2)])
def test_classes_that_the_program_allows_are_made_as_pickle_makes_them(
    tmp_path: Path, value: Any
) -> None:
    save(tmp_path, {"a": torch.ones(3)})
    change(tmp_path, planner_data=lambda _: {"a": value, "b": [value]})
    with pytest.raises(FormatError, match=f"`.*{type(value).__name__}`"):
        Reader(tmp_path).read_metadata()
    with torch.serialization.safe_globals([type(value)]):
        found = Reader(tmp_path).read_metadata().planner_data
    expected = pickle.loads(pickle.dumps(value))
    assert found == {"a": expected, "b": [expected]} and found["a"] is found["b"][0]
    assert type(found["a"]) is type(expected) and vars(found["a"]) == vars(expected)


class Inverted(io.RawIOBase):
    """The other bits of a stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        found = bytes(byte ^ 255 for byte in self._stream.read(len(target)))
        target[: len(found)] = found
        return len(found)

    def write(self, content: Any) -> int:
        return int(self._stream.write(bytes(byte ^ 255 for byte in bytes(content))))


def test_items_with_transforms_are_left_to_torch(tmp_path: Path) -> None:
    extensions = pytest.importorskip("torch.distributed.checkpoint._extension")

    class Inverts(extensions.StreamTransformExtension):  # type: ignore[misc,name-defined]
        @staticmethod
        def from_descriptor(version: str) -> Inverts:
            return Inverts()

        @staticmethod
        def registry_name() -> str:
            return "inverts"

        def get_descriptor(self) -> str:
            return "inverts/1"

        def transform_to(self, output: Any) -> Any:
            return Inverted(output)

        def transform_from(self, input: Any) -> Any:
            return Inverted(input)

    state = {"a": torch.arange(5.0), "b": "text"}
    writer = dcp.FileSystemWriter(tmp_path, _extensions=[Inverts()])
    dcp.save(state, storage_writer=writer, no_dist=True)
    assert items(tmp_path)["a"].transform_descriptors == ["inverts/1"]
    known = extensions.ExtensionRegistry()
    known.register(Inverts)
    loaded = blank(state)
    dcp.load(loaded, storage_reader=Reader(tmp_path, _extension_registry=known), no_dist=True)
    assert same(loaded, state)
    with refused("the item `a` of .*torch cannot read it: .*inverts"):
        load(tmp_path, blank(state))


def test_metadata_makes_no_group_of_processes(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(3)})
    mesh = b"\x80\x04ctorch.distributed.device_mesh\nDeviceMesh\n"
    for call in (b"\x8c\x03cpu]K\x00a\x86R.", b"N}\x8c\x03nowK\x01s\x86b."):
        (tmp_path / ".metadata").write_bytes(mesh + call)
        with pytest.raises(FormatError, match="DeviceMesh`|is complete"):
            Reader(tmp_path).read_metadata()
    path = b"\x80\x04cpathlib\nPosixPath\nN}\x8c\x08__name__\x8c\x01zs\x86b."
    (tmp_path / ".metadata").write_bytes(path)
    with pytest.raises(FormatError):
        Reader(tmp_path).read_metadata()
    assert _metadata._path.__name__ == "_path"


def test_metadata_changes_no_enumeration(tmp_path: Path) -> None:
    encoding = dcp.metadata._MEM_FORMAT_ENCODING
    save(tmp_path, {"a": torch.ones(3)})
    member = f"c{encoding.__module__}\n{encoding.__name__}\nK\0\x85R".encode()
    for change in (b"}X\x07\0\0\0_value_Kcsb0", b"N}X\x07\0\0\0_value_Kcs\x86b0"):
        content = (tmp_path / ".metadata").read_bytes()
        (tmp_path / ".metadata").write_bytes(content[:2] + member + change + content[2:])
        with pytest.raises(FormatError):
            Reader(tmp_path).read_metadata()
        (tmp_path / ".metadata").write_bytes(content)
    assert encoding(0).value == 0
    save(tmp_path, {"a": torch.ones(3)})
    load(tmp_path, {"a": torch.zeros(3)})


def repeated(last: bytes, levels: int = 40) -> bytes:
    """A pickle of a tuple that holds the one before twice, and what is made of it."""
    each = (b"h%c" % n * 2 + b"\x86\x94\x30" for n in range(levels))
    return b"\x80\x04)\x94" + b"".join(each) + last % {b"it": b"h%c" % levels}


HERE = b"ctorch.distributed.checkpoint.metadata\n"
BOMBS = {
    "a key": b"}%(it)sNs.",
    "a set": b"cbuiltins\nset\n((%(it)sttR.",
    "a list for a set": b"cbuiltins\nset\n](%(it)se\x85R.",
    "a type of NumPy": b"cnumpy\ndtype\n%(it)s\x85R.",
    "an enumeration": HERE + b"_MEM_FORMAT_ENCODING\n%(it)s\x85R.",
    "a layout": b"ctorch.serialization\n_get_layout\n%(it)s\x85R.",
    "a shape": b"ctorch\nSize\n%(it)s\x85R.",
    "a path": b"cpathlib\nPosixPath\n%(it)s\x85R.",
    "a name": HERE + b"MetadataIndex\n)\x81}\x8c\x03fqn%(it)ssb.",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_repeated_objects_of_metadata_end_it(tmp_path: Path, kind: str) -> None:
    (tmp_path / ".metadata").write_bytes(repeated(BOMBS[kind]))
    with pytest.raises(FormatError) as error:
        Reader(tmp_path).read_metadata()
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("kind", ["pipe", "zero", "sparse", "folder"])
def test_only_a_regular_file_is_metadata(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ".metadata"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "zero":
            path.symlink_to("/dev/zero")
        case "sparse":
            path.touch()
            os.truncate(path, 1 << 40)
        case "folder":
            path.mkdir()
    with pytest.raises(forebay.Error, match="metadata"):
        Reader(tmp_path).read_metadata()


def test_names_of_storages_are_texts() -> None:
    def layout(key: bytes) -> Any:
        kind, cpu = (b"X" + len(text).to_bytes(4, "little") + text for text in (b"storage", b"cpu"))
        storage = b"(" + kind + b"ctorch\nFloatStorage\n" + key + cpu + b"K\x01tQ"
        tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00K\x01\x85K\x01\x85\x89Nt"
        return _item.layout(b"\x80\x02" + tensor + b"R.")

    assert layout(b"X\x01\0\0\0\x30").storage == "0"
    # A tuple that holds the one before twice, many times: its text would have no end.
    deep = b"".join(b"q\x00h\x00h\x00\x86" for _ in range(64))
    assert layout(b"K\x01" + deep) is None


def test_a_folder_without_metadata(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"cannot load `.*\.metadata`.*saved completely"):
        Reader(tmp_path).read_metadata()


@pytest.mark.parametrize("path", ["../other", "/etc/passwd", "a/../../b", "", "a\0b", 7])
def test_a_file_outside_the_folder_is_refused(tmp_path: Path, path: Any) -> None:
    def moved(stored: Any) -> Any:
        for info in stored.values():
            info.relative_path = path
        return stored

    save(tmp_path, {"a": torch.ones(3)})
    change(tmp_path, storage_data=moved)
    with refused("the item `a` of"):
        load(tmp_path, {"a": torch.ones(3)})


@pytest.mark.parametrize(("offset", "length"), [(-1, 5), (0, 2**62), (2**70, 5), (0, "x"), (0, 7)])
def test_a_place_outside_the_file_is_refused(tmp_path: Path, offset: Any, length: Any) -> None:
    def moved(stored: Any) -> Any:
        for info in stored.values():
            info.offset, info.length = offset, length
        return stored

    save(tmp_path, {"a": torch.ones(3)})
    change(tmp_path, storage_data=moved)
    with refused("the item `a` of"):
        load(tmp_path, {"a": torch.ones(3)})


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(3000)})
    path = tmp_path / items(tmp_path)["a"].relative_path
    path.write_bytes(path.read_bytes()[:-1])
    with refused(r"the item `a` of .*it ends at byte [0-9]+, but the file at byte [0-9]+"):
        load(tmp_path, {"a": torch.ones(3000)})


def test_another_shape_than_that_of_the_metadata_is_refused(tmp_path: Path) -> None:
    save(tmp_path, {"a": torch.ones(8, 2)})
    save(tmp_path / "other", {"a": torch.ones(4, 4)})
    content = data_of(tmp_path / "other").read_bytes()
    data_of(tmp_path).write_bytes(content)
    with refused(r"its shape \[4, 4\] is not that of the metadata"):
        load(tmp_path, {"a": torch.ones(8, 2)})


def test_changed_items_are_read_or_refused(tmp_path: Path) -> None:
    seed, rounds = (int(os.environ.get(f"FOREBAY_{name}", one)) for name, one in KNOBS)
    save(tmp_path, {"a": torch.arange(3000.0)})
    info = items(tmp_path)["a"]
    whole = (tmp_path / info.relative_path).read_bytes()
    item = whole[info.offset : info.offset + info.length]
    assert located(item[:PEEK], item[-PEEK:], len(item))
    taken = 0
    for number in range(seed, seed + DAILY * rounds):
        draw = random.Random(number)
        content = bytearray(item)
        for _ in range(draw.randrange(1, 4)):
            at = draw.choice([draw.randrange(PEEK), -1 - draw.randrange(PEEK // 2)])
            content[at] = draw.choice([0, 1, 0xFF, draw.randrange(256)])
        if draw.random() < 0.1:
            del content[draw.randrange(len(content)) :]
        try:
            found = located(bytes(content[:PEEK]), bytes(content[-PEEK:]), len(content))
        except Refused as error:
            assert len(str(error)) < 400, number
            continue
        taken += found is not None
        if found:
            start, layout = found
            end = start + layout.elements * layout.dtype.itemsize
            assert 0 <= start <= end <= len(content), number
    assert taken > 0


def test_changed_metadata_is_read_or_refused(tmp_path: Path) -> None:
    seed, rounds = (int(os.environ.get(f"FOREBAY_{name}", one)) for name, one in KNOBS)
    state = {"a": torch.arange(30.0).reshape(6, 5), "b": torch.ones(2), "text": "x", "step": 3}
    save(tmp_path, state)
    metadata = tmp_path / ".metadata"
    whole = metadata.read_bytes()
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path != metadata}
    taken = 0
    count = 200 * rounds
    for number in range(seed, seed + count):
        draw = random.Random(number)
        content = bytearray(whole)
        for _ in range(draw.choice([1, 1, 2])):
            at = draw.randrange(len(content))
            piece = bytes([draw.choice([0, 1, 0xFF, draw.randrange(256), draw.choice(whole)])])
            content[at : at + draw.choice([1, 1, 1, 1, 0, 2])] = piece
        metadata.write_bytes(content)
        loaded = blank(state)
        try:
            Reader(tmp_path).read_metadata()
            taken += 1
            load(tmp_path, loaded)
        except (FormatError, CheckpointException):
            pass
        except Exception as error:
            raise AssertionError(f"FOREBAY_SEED={number}") from error
        for name, tensor in loaded.items():
            if isinstance(tensor, torch.Tensor):
                assert tensor.shape == state[name].shape, f"FOREBAY_SEED={number}"
    assert taken > count // 40, f"the seeds show little: {taken}"
    metadata.unlink()
    assert before == {path: path.read_bytes() for path in tmp_path.iterdir()}


def write(folder: Path, state: Any, **options: Any) -> None:
    dcp.save(state, storage_writer=Writer(folder, **options), no_dist=True)


@pytest.mark.parametrize("is_single", [True, False])
@pytest.mark.parametrize("reader", [Reader, dcp.FileSystemReader])
def test_both_read_what_the_writer_wrote(tmp_path: Path, is_single: bool, reader: Any) -> None:
    state = some_state()
    write(tmp_path, state, single_file_per_rank=is_single)
    assert len(list(tmp_path.glob("*.distcp"))) == (1 if is_single else len(items(tmp_path)))
    loaded = blank(state)
    dcp.load(loaded, storage_reader=reader(tmp_path), no_dist=True)
    assert same(state, loaded)


def test_large_tensors_begin_at_blocks(tmp_path: Path) -> None:
    state = {str(n): values((n, 64 << 10), torch.uint8, n) for n in (1, 3)} | {"0": torch.ones(1)}
    write(tmp_path, state)
    whole = data_of(tmp_path).read_bytes()
    for name, tensor in state.items():
        info = items(tmp_path)[name]
        item = whole[info.offset : info.offset + info.length]
        found = located(item[:PEEK], item[-PEEK:], len(item))
        assert found
        begin = info.offset + found[0]
        assert begin % (4096 if tensor.nbytes > 4 else 64) == 0
        assert whole[begin : begin + tensor.nbytes] == bits(tensor).numpy().tobytes()


def test_a_save_that_fails_changes_nothing(tmp_path: Path) -> None:
    state: dict[str, Any] = {"a": values((300, 300), torch.float32, 1), "b": 1}
    write(tmp_path, state)
    names = sorted(os.listdir(tmp_path))
    with pytest.raises(CheckpointException):
        write(tmp_path, {"a": values((300, 300), torch.float32, 2), "b": lambda: None})
    assert sorted(os.listdir(tmp_path)) == names
    loaded = blank(state)
    load(tmp_path, loaded)
    assert same(state, loaded)
    newer = {"a": values((300, 300), torch.float32, 3), "b": 2}
    write(tmp_path, newer)
    load(tmp_path, loaded)
    assert same(newer, loaded) and len(os.listdir(tmp_path)) == len(names)
    assert sorted(os.listdir(tmp_path)) != names, "no save uses the names of another one"
    with pytest.raises(CheckpointException, match="already exists"):
        write(tmp_path, state, overwrite=False)


def test_a_killed_save_over_another_leaves_one_of_them(tmp_path: Path) -> None:
    code = """
import sys, torch, torch.distributed.checkpoint as dcp
from forebay.torch.dcp import Writer
number = 0
while True:
    number += 1
    # Each has other shapes.
    state = {f"w{n}": torch.full((100 + number % 7, 300), float(number)) for n in range(3)}
    dcp.save(state, storage_writer=Writer(sys.argv[1]), no_dist=True)
    print(number, flush=True)
"""
    rng = random.Random(seed := int(os.environ.get("FOREBAY_SEED", random.randrange(1 << 32))))
    print(f"seed {seed}")
    for _ in range(int(os.environ.get("FOREBAY_STRESS", "4"))):
        run = [sys.executable, "-c", code, str(tmp_path)]
        process = subprocess.Popen(run, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == "1\n"
        time.sleep(rng.uniform(0, 0.05))
        process.kill()
        reported = [1, *map(int, process.stdout.read().split())]
        process.wait()
        shapes = Reader(tmp_path).read_metadata().state_dict_metadata
        loaded = {name: torch.zeros(about.size) for name, about in shapes.items()}
        load(tmp_path, loaded)
        values = {float(number) for one in loaded.values() for number in one.unique()}
        assert values in ({float(reported[-1])}, {float(reported[-1] + 1)})
    write(tmp_path, {"a": torch.ones(3)})
    assert len(os.listdir(tmp_path)) == 2, "what the killed saves left is gone"


SAVER = """
import sys, time, torch, torch.distributed.checkpoint as dcp
from forebay.torch.dcp import Writer

class Slow(Writer):
    def finish(self, *given, **named):
        time.sleep(float(sys.argv[3]))
        return super().finish(*given, **named)

number, count = int(sys.argv[2]), int(sys.argv[4])
for number in range(number, number + count):
    state = {f"w{n}": torch.full((100, 30), float(number)) for n in range(3)} | {"step": number}
    dcp.save(state, storage_writer=Slow(sys.argv[1], sync_files=False), no_dist=True)
    print(number, flush=True)
"""


def saver(folder: Path, number: int, wait: float, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", SAVER, str(folder)]
    command += [str(number), str(wait), str(count)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def number_of(folder: Path) -> float:
    """The value of all elements of a checkpoint of `SAVER`."""
    state: dict[str, Any] = {f"w{n}": torch.zeros(100, 30) for n in range(3)} | {"step": -1}
    load(folder, state)
    found = {float(number) for n in range(3) for number in state[f"w{n}"].unique()}
    assert found == {float(state["step"])}
    return float(state["step"])


def test_loads_beside_savers_that_are_killed_find_whole_checkpoints(tmp_path: Path) -> None:
    first = [saver(tmp_path, 1, 0.5, 1), saver(tmp_path, 2, 0.0, 1)]
    for each in first:
        assert each.communicate()[0], "both succeed"
    assert number_of(tmp_path) in (1, 2)
    assert len(os.listdir(tmp_path)) == 2, "the last one to end removes the files of the other"
    savers = [saver(tmp_path, 1000 * n, 0.0, 1000) for n in range(1, 3)]
    try:
        for each in savers:
            assert each.stdout is not None and each.stdout.readline()
        for each in savers:
            for _ in range(40 * int(os.environ.get("FOREBAY_STRESS", "1"))):
                assert number_of(tmp_path)
            each.kill()
    finally:
        for each in savers:
            each.kill()
            each.communicate()
    assert number_of(tmp_path)
    write(tmp_path, {"a": torch.ones(3)})
    assert len(os.listdir(tmp_path)) == 2, "what the killed saves left is gone"


@pytest.mark.parametrize("is_same", [True, False])
def test_a_save_after_the_plan_of_a_load(tmp_path: Path, is_same: bool) -> None:
    class Late(Reader):
        def set_up_storage_reader(self, *given: Any, **more: Any) -> None:
            super().set_up_storage_reader(*given, **more)
            write(tmp_path, newer)

    state: dict[str, Any] = {"a": torch.ones(300, 300), "named": torch.ones(3).as_subclass(Named)}
    newer = {"a": torch.full((300, 300) if is_same else (3,), 2.0), "named": state["named"] * 2}
    write(tmp_path, state | {"step": 1})
    newer["step"] = 2
    loaded = {"a": torch.zeros(300, 300), "named": torch.zeros(3), "step": 0}
    with torch.serialization.safe_globals([Named]):
        if is_same:
            dcp.load(loaded, storage_reader=Late(tmp_path), no_dist=True)
            assert loaded["a"].unique().tolist() == [2] and loaded["named"].tolist() == [2, 2, 2]
            assert loaded["step"] == 2
            return
        with pytest.raises(CheckpointException, match="replaced it by one of other tensors"):
            dcp.load(loaded, storage_reader=Late(tmp_path), no_dist=True)


def test_a_save_during_a_load_removes_none_of_its_files(tmp_path: Path) -> None:
    class Late(Reader):
        def read_data(self, *given: Any) -> Any:
            write(tmp_path, {"a": torch.ones(3), "step": 2})
            return super().read_data(*given)

    write(tmp_path, {"a": torch.ones(300, 300), "step": 1})
    loaded = {"a": torch.zeros(300, 300), "step": 0}
    dcp.load(loaded, storage_reader=Late(tmp_path), no_dist=True)
    assert loaded["a"].unique().tolist() == [1] and loaded["step"] == 1


def test_ranks_load_one_checkpoint(tmp_path: Path) -> None:
    plans = []
    for value in (1.0, 2.0):
        write(tmp_path, {"a": torch.full((3,), value)})
        reader = Reader(tmp_path)
        metadata = reader.read_metadata()
        reader.set_up_storage_reader(metadata, True)
        plans.append(reader.prepare_local_plan(dcp.LoadPlan([])))
    with pytest.raises(forebay.FileChanged, match="ranks found different checkpoints"):
        reader.prepare_global_plan(plans)
    assert len(reader.prepare_global_plan([plans[0]] * 2)) == 2


def test_a_missing_file_of_a_checkpoint_is_named(tmp_path: Path) -> None:
    write(tmp_path, state := {"a": torch.ones(3)})
    lost = data_of(tmp_path)
    lost.unlink()
    with pytest.raises(CheckpointException) as error:
        load(tmp_path, blank(state))
    ((cause, _),) = error.value.failures.values()
    assert isinstance(cause, FileNotFoundError) and lost.name in str(cause)
    assert "the checkpoint's metadata names it" in str(cause) and "spelling" not in str(cause)


def data_of(folder: Path) -> Path:
    """The only data file of a checkpoint."""
    [found] = folder.glob("__0_0*.distcp")
    return found


class Named(torch.Tensor):  # type: ignore[misc]
    """A kind of tensor that has to come back as such."""


def test_other_tensors_are_written_as_torch_does(tmp_path: Path) -> None:
    value = torch.tensor([1 + 2j, 3 + 4j])
    state = {"conj": value.conj(), "named": torch.ones(3).as_subclass(Named)}
    write(tmp_path, state)
    for reader in (Reader, dcp.FileSystemReader):
        loaded = {"conj": torch.zeros_like(value), "named": torch.zeros(3)}
        with torch.serialization.safe_globals([Named]):
            dcp.load(loaded, storage_reader=reader(tmp_path), no_dist=True)
        assert torch.equal(loaded["conj"], value.conj()) and loaded["named"].tolist() == [1, 1, 1]


def test_an_item_of_more_than_4_gib(tmp_path: Path) -> None:
    nbytes = (4 << 30) + 5
    head, tail = frame(torch.uint8, (nbytes,))
    path = tmp_path / "item"
    with path.open("wb") as file:  # a hole
        file.write(head)
        file.seek(nbytes - 1, os.SEEK_CUR)
        file.write(b"\x07" + tail)
    length = path.stat().st_size
    found = located(head[:PEEK], (b"\x07" + tail)[-PEEK:], length)
    assert found and found[0] == len(head) and found[1].elements == nbytes
    tensor = torch.load(path, mmap=True, weights_only=True)
    assert tensor.shape == (nbytes,) and tensor[-1] == 7 and tensor[0] == 0

RANK = """
import sys
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor
from forebay.torch.dcp import Reader, Writer

rank, folder = int(sys.argv[1]), sys.argv[2]
store = f"file://{folder}/store"
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=3)
whole = torch.arange(80.0).reshape(10, 8)

def state(mesh, value, *ways):
    names = zip("abc", (*ways, Replicate()))
    found = {name: distribute_tensor(value, mesh, [way]) for name, way in names}
    return found | {"step": int(value[1, 0])}

three, two = DeviceMesh("cpu", [0, 1, 2]), DeviceMesh("cpu", [0, 1])
saved = state(three, whole, Shard(0), Shard(1))
dcp.save(saved, storage_writer=dcp.FileSystemWriter(f"{folder}/torch"))
dcp.save(saved, storage_writer=Writer(f"{folder}/ours"))
dcp.async_save(saved, storage_writer=Writer(f"{folder}/async")).result()
if rank < 2:
    readers = [Reader(f"{folder}/{name}") for name in ("torch", "ours", "async")]
    for reader in [*readers, dcp.FileSystemReader(f"{folder}/ours")]:
        for ways in ((Shard(0), Shard(1)), (Shard(1), Shard(0))):
            loaded = state(two, torch.zeros_like(whole), *ways)
            dcp.load(loaded, storage_reader=reader, process_group=two.get_group())
            assert loaded["step"] == 8, loaded["step"]
            for name in "abc":
                assert torch.equal(loaded[name].full_tensor(), whole), (reader.path, name)
dist.barrier()
dist.destroy_process_group()
print("equal")
"""


def test_three_ranks_save_and_two_load(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", RANK]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        for rank in range(3)
    ]
    try:
        printed = [rank.communicate(timeout=600)[0].decode() for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(printed)
    assert {len(list((tmp_path / name).glob("*.distcp"))) for name in ("ours", "async")} == {3}
