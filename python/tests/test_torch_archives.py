"""Files that `torch.save` wrote: loaded as tensors by name, without running what they name."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import content, memory_taken
from forebay.safetensors import FormatError, iterate, load_file, safe_open

numpy = pytest.importorskip("numpy")

KNOBS = [("SEED", 0), ("STRESS", 1)]
DAILY = 200
FLOATS = content(400, seed=3)


def number(value: int) -> bytes:
    raw = pickle.encode_long(value)
    return b"\x8a" + bytes([len(raw)]) + raw


def text(value: str) -> bytes:
    raw = value.encode(errors="surrogatepass")
    return b"X" + struct.pack("<I", len(raw)) + raw


def numbers(values: Any) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


def tensor(
    key: str = "0", first: int = 0, shape: Any = (100,), strides: Any = (1,), count: int = 100,
    storage: str = "FloatStorage",
) -> bytes:
    """Opcodes that make a tensor."""
    place = text("storage") + f"ctorch\n{storage}\n".encode() + text(key) + text("cpu")
    made = b"ctorch._utils\n_rebuild_tensor_v2\n((" + place + number(count) + b"tQ" + number(first)
    return made + numbers(shape) + numbers(strides) + b"\x89ccollections\nOrderedDict\n)RtR"


def named(**values: bytes) -> bytes:
    """Opcodes that make a dictionary."""
    return b"}(" + b"".join(text(name) + value for name, value in values.items()) + b"u"


def archive(code: bytes, storages: dict[str, bytes] | None = None, **entries: bytes) -> bytes:
    """A file with a pickle, as torch writes it."""
    file = io.BytesIO()
    entries = {"version": b"3\n", **entries}
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("model/data.pkl", b"\x80\x02" + code + b".")
        for name, value in entries.items():
            made.writestr(f"model/{name.replace('_', '.')}", value)
        for key, value in ({"0": FLOATS} if storages is None else storages).items():
            made.writestr(f"model/data/{key}", value)
    return file.getvalue()


def patched(content: bytes, at: bytes, old: bytes, new: bytes) -> bytes:
    """Replaces bytes behind others."""
    place = content.index(old, content.index(at))
    return content[:place] + new + content[place + len(old) :]


def test_an_archive_needs_no_torch(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    floats = numpy.frombuffer(FLOATS, "float32")
    code = named(
        whole=tensor(), again=tensor(), rows=tensor(first=20, shape=(2, 10), strides=(30, 1)),
        turned=tensor(shape=(5, 20), strides=(1, 5)), other=tensor("1", 1, (2,), count=3),
        none=tensor(shape=(0, 7), strides=(7, 1)), one=tensor(first=7, shape=(), strides=()),
        repeated=tensor(first=3, shape=(2, 3, 4), strides=(0, 1, 0)),
        windows=tensor(shape=(98, 3), strides=(1, 1)),
    )
    path.write_bytes(archive(code, {"0": FLOATS, "1": FLOATS[:12]}))
    expected = {
        "whole": floats, "again": floats, "rows": numpy.stack([floats[20:30], floats[50:60]]),
        "turned": floats.reshape(20, 5).T, "other": floats[1:3],
        "none": numpy.empty((0, 7), "float32"), "one": floats[7],
        "repeated": numpy.broadcast_to(floats[3:6, None], (2, 3, 4)),
        "windows": numpy.lib.stride_tricks.sliding_window_view(floats, 3),
    }
    report: dict[str, Any] = {}
    loaded = load_file(path, framework="numpy", report=report)
    for found in (loaded, dict(iterate(path, framework="numpy", window=100))):
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            assert found[name].shape == array.shape
            assert found[name].tobytes() == array.tobytes()
    assert report["bytes"] == 400 + 8 and report["metadata"] == {}
    rank = load_file(path, framework="numpy", names="turned", shard=(1, 3, 4))
    assert rank["turned"].tobytes() == expected["turned"][:, 15:].tobytes()
    with safe_open(path, "np") as file:
        assert file.get_slice("turned").get_shape() == [5, 20]
        assert file.get_slice("turned")[2, 3:5].tobytes() == expected["turned"][2, 3:5].tobytes()
    # A row of a large storage is read alone.
    path.write_bytes(archive(named(row=tensor(first=20, shape=(10,)))))
    load_file(path, framework="numpy", report=report)
    assert report["bytes"] == 40


GOOD = archive(named(a=tensor()))
SIZE = struct.pack("<II", 400, 400)
WRONG = {
    "cut": (GOOD[:-1], "not a complete zip"),
    "no directory": (GOOD[: len(GOOD) // 2], "not a complete zip"),
    "no pickle": (GOOD.replace(b"data.pkl", b"dada.pkl"), "no entry `model/data.pkl`"),
    "a script": (archive(named(a=tensor()), constants_pkl=b""), "a program of TorchScript"),
    "another byte order": (archive(named(a=tensor()), byteorder=b"big"), "not little-endian"),
    "a changed pickle": (GOOD.replace(b"_v2", b"_v4"), "calls `torch._utils._rebuild_tensor_v4`"),
    "compressed": (
        patched(GOOD, b"PK\1\2", b"\0\0", b"\0\0").replace(
            b"PK\1\2\x14\3\x14\0\0\0\0\0", b"PK\1\2\x14\3\x14\0\0\0\x08\0"
        ),
        "compressed or encrypted",
    ),
    "entries over each other": (
        GOOD.replace(b"\0\0model/data/0", b"\xff\0model/data/0", 1),
        "overlaps the next one",
    ),
    "an entry beyond the end": (
        patched(GOOD, b"PK\1\2", SIZE, struct.pack("<II", 2**31, 2**31)),
        "overlaps the next one",
    ),
    "a compressed storage": (
        patched(GOOD, b"PK\1\2\x14\3\x14\0\0\0\0\0", b"\x14\0\0\0\0\0", b"\x14\0\1\0\0\0"),
        "compressed or encrypted",
    ),
    "two folders": (
        GOOD.replace(b"model/data/0", b"mode1/data/0"), "`mode1/data/0` is not in the folder `model/`"
    ),
    "no folder": (
        GOOD.replace(b"model/version", b"model.version"), "`model.version` is not in the folder"
    ),
    "another version": (archive(named(a=tensor()), version=b"999\n"), "its version is `999"),
    "a short zip": (
        b"PK\3\4" + bytes(14) + b"PK\6\7" + bytes(16) + b"PK\5\6" + bytes(18), "it is too short",
    ),
    "objects below a mark": (archive(b"NN(\x86t"), "its stack is empty"),
    "a name that is not UTF-8": (archive(named(a=tensor("\udcff"))), "has no name or no size"),
    "fewer entries than its directory": (
        patched(GOOD, b"PK\5\6", b"\3\0\3\0", b"\2\0\2\0"), "has 3 entries, not 2",
    ),
    "no storage": (archive(named(a=tensor("7"))), "no entry for its tensor `a`"),
    "a longer storage": (archive(named(a=tensor(count=101))), "has 400 bytes, not 404"),
    "a huge storage": (archive(named(a=tensor(count=2**50))), "has 400 bytes, not 450"),
    "beyond its storage": (archive(named(a=tensor(first=1))), "after the end of its storage"),
    "a huge shape": (archive(named(a=tensor(shape=(2**40,)))), "after the end of its storage"),
    "repeated elements beyond it": (
        archive(named(a=tensor(shape=(2**40, 101), strides=(0, 1)))),
        "after the end of its storage",
    ),
    "an overflow": (
        archive(named(a=tensor(shape=(2**62, 2**62, 0), strides=(0, 0, 0)))),
        "more than 2**64 bits",
    ),
    "an overflow of repeated elements": (
        archive(named(a=tensor(shape=(2**62, 2**62), strides=(0, 0)))),
        "more than 2**64 bits",
    ),
    "a stride below zero": (archive(named(a=tensor(strides=(-1,)))), "invalid shape or strides"),
    "dimensions": (archive(named(a=tensor(strides=()))), "1 dimensions and 0 strides"),
    "no type": (archive(named(a=tensor(storage="system"))), "the type `torch.system`"),
    "a program": (archive(b"cos\nsystem\n(" + text("touch run") + b"tR"), "calls `os.system`"),
    "built": (archive(named(a=tensor() + b"}b")), "it changes a tensor"),
    "an object": (archive(b"cos\nsystem\n)\x81"), "it makes `os.system`"),
    "a list": (archive(b"]"), "it is of type `list`"),
    "nested": (archive(named(a=named(b=tensor()))), "`a` in it is of type `dict`"),
    "a number": (archive(named(a=tensor(), step=number(5))), "`step` in it is of type `int`"),
    "an endless key": (archive(b"}(" + b"))\x86q\0h\0\x86" + number(1) + b"u"), "is of type `tuple`"),
    "no mark": (archive(b"u"), "its pickle does not hold"),
    "a long number": (archive(b"\x8b\xff\xff\xff\x7f"), "its pickle does not hold"),
    "a long text": (archive(b"B\xff\xff\xff\x7f"), "its pickle does not hold"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_broken_archive_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    raw, why = WRONG[kind]
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pt"
    path.write_bytes(raw)
    for call in (load_file, safe_open):
        with pytest.raises(FormatError) as error:
            call(path, framework="numpy", device="cpu")
        assert why in str(error.value) and f"`{path}`" in str(error.value)
        assert error.value.filename == str(path) and len(str(error.value)) < 400
    assert os.listdir(tmp_path) == ["model.pt"]


def changed(draw: random.Random) -> bytes:
    """A small archive of which something may be wrong."""
    tensors, storages = {}, {}
    for key in map(str, range(draw.randrange(1, 3))):
        storages[key] = content(4 * draw.choice([0, 6, 100, 100]), seed=int(key))
    for name in map(str, range(draw.randrange(1, 5))):
        key = draw.choice(list(storages))
        count = len(storages[key]) // 4
        shape = [draw.randrange(1, 4) for _ in range(draw.randrange(3))]
        strides = [draw.choice([0, 1, 1, 3, *shape]) for _ in shape]
        first = draw.randrange(4) if draw.random() < 0.2 else 0
        if draw.random() < 0.1:
            count += draw.choice([-1, 1, 2**40])
        tensors[f"t{name}"] = tensor(key, first, shape, strides, max(count, 0))
    code = named(**tensors)
    for _ in range(draw.choice([0, 0, 0, 1, 3])):
        at = draw.randrange(len(code))
        piece = bytes([draw.randrange(256)]) if draw.random() < 0.7 else b""
        code = code[:at] + piece + code[at + draw.randrange(2) :]
    raw = archive(code, storages)
    if draw.random() < 0.3:
        at = draw.randrange(4, len(raw))
        raw = raw[:at] + bytes([draw.randrange(256)]) + raw[at + 1 :]
    return raw


def check_changed(path: Path, seeds: range) -> None:
    try:
        import torch
    except ImportError:
        torch = None
    taken = equal = 0
    for seed in seeds:
        raw = changed(random.Random(seed))
        path.write_bytes(raw)
        try:
            report: dict[str, Any] = {}
            loaded = load_file(path, framework="numpy", report=report)
        except FormatError:
            continue
        except Exception as error:
            raise AssertionError(f"FOREBAY_SEED={seed}") from error
        taken += 1
        assert report["bytes"] <= len(raw), f"FOREBAY_SEED={seed}"
        if torch is None:
            continue
        try:
            theirs = torch.load(io.BytesIO(raw), weights_only=True)
        except Exception:
            continue  # the checksum of a storage, which torch compares
        assert loaded.keys() == theirs.keys(), f"FOREBAY_SEED={seed}"
        for name, array in loaded.items():
            other = theirs[name].numpy()
            assert array.shape == other.shape, f"FOREBAY_SEED={seed}: {name}"
            if array.size > 1 << 20:
                continue  # few elements, repeated
            assert array.tobytes() == other.tobytes(), f"FOREBAY_SEED={seed}: {name}"
        equal += 1
    assert torch is None or equal > 0.9 * taken, "torch refuses what is loaded"
    assert 0.1 < taken / len(seeds) < 0.9, "the seeds show little"


def twice(content: bytes) -> bytes:
    """Two archives, one after the other."""
    return content + archive(named(a=tensor("1")), {"1": bytes(400)})


@pytest.mark.parametrize(
    "content",
    [
        twice(GOOD),
        b"PK\3\4" + GOOD,
        GOOD[:-2] + struct.pack("<H", 22) + GOOD[-22:],
        archive(named(a=tensor("A")), {"A": FLOATS, "a": FLOATS}),
        archive(named(a=tensor("A")), {"a": FLOATS}),
        archive(named(a=tensor()), {"0": FLOATS, "x\\y": FLOATS}),
    ],
)
def test_an_archive_with_two_contents_is_refused(tmp_path: Path, content: bytes) -> None:
    (path := tmp_path / "model.pt").write_bytes(content)
    with pytest.raises(FormatError):
        load_file(path, framework="numpy")


BESIDE = {
    "bytes": b"c_codecs\nencode\n" + text("x") + text("latin1") + b"\x86R",
    "set": b"c__builtin__\nset\n]" + number(1) + b"a\x85R",
    "complex": b"c__builtin__\ncomplex\n" + number(1) + number(2) + b"\x86R",
    "device": b"ctorch\ndevice\n" + text("cpu") + b"\x85R",
    "counter": b"ccollections\nCounter\n}\x85R",
    "tuples": b"}" + number(1) + text("a") + b"\x86" + number(3) + b"s",
}


@pytest.mark.parametrize("kind", BESIDE)
def test_a_checkpoint_may_have_other_objects(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(archive(named(state_dict=named(a=tensor()), other=BESIDE[kind])))
    assert load_file(path, framework="numpy")["a"].tobytes() == FLOATS
    path.write_bytes(archive(named(a=tensor(), other=BESIDE[kind])))
    with pytest.raises(FormatError, match="`other` in it is of type"):
        load_file(path, framework="numpy")


BOMBS = {
    "lists": b"]" * 4_000_000,
    "dictionaries": b"}" * 4_000_000,
    "marks": b"(" * 8_000_000,
    "memo": b"Nr\xff\xff\xff\xff",
    "tuples": b")" + b"".join(b"q\0h\0h\0\x86" for _ in range(60)),
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_pickle_takes_memory_as_its_file_explains(tmp_path: Path, kind: str) -> None:
    (path := tmp_path / "model.pt").write_bytes(archive(BOMBS[kind]))
    taken, error = memory_taken(path)
    assert taken < 4 * path.stat().st_size + (64 << 20) and 0 < len(error) < 600


def test_repeated_elements_are_converted_and_copied_once(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(archive(named(a=tensor(shape=(2**40, 3), strides=(0, 1)))))
    half = load_file(path, framework="numpy", dtype="float16")["a"]
    [(_, copied)] = iterate(path, framework="numpy", window="1MiB", copy=True)
    for found in (half, copied):
        assert found.shape == (2**40, 3) and found.strides[0] == 0
    assert copied[7].tobytes() == FLOATS[:12]


def test_changed_archives_are_refused_or_loaded_as_by_torch(tmp_path: Path) -> None:
    first, rounds = (int(os.environ.get(f"FOREBAY_{name}", one)) for name, one in KNOBS)
    check_changed(tmp_path / "model.pt", range(first, first + DAILY * rounds))


@pytest.fixture
def torch() -> Any:
    return pytest.importorskip("torch")


def same(torch: Any, found: Any, expected: dict[str, Any]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype
        and found[name].shape == tensor.shape
        and (tensor.numel() == 0 or found[name].stride() == tensor.stride())
        and found[name].tolist() == tensor.tolist()
        for name, tensor in expected.items()
    )


def test_tensors_come_as_torch_loads_them(tmp_path: Path, torch: Any) -> None:
    path = tmp_path / "model.pt"
    tied, large = torch.randn(64, 32), torch.randn(100, 100)
    types = [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.uint8, torch.int16]
    types += [torch.int32, torch.int64, torch.bool, torch.complex64, torch.uint16, torch.uint64]
    state = {f"of {dtype}": torch.arange(5).to(dtype) for dtype in types}
    state |= {
        "float8": torch.arange(5.0).to(torch.float8_e4m3fn),
        "a": tied, "b": tied, "turned": large.t(), "step": large[::2, 3:7], "row": large[3],
        "empty": torch.empty(0, 3), "one": torch.tensor(3.5),
        "parameter": torch.nn.Parameter(torch.randn(3)),
        "part": torch.randn(1000, 1000)[2:4],
        "expanded": large[5:6].expand(7, 100), "all": torch.ones(1).expand(3, 999),
        "windows": torch.arange(20.0).unfold(0, 5, 2), "strided": large.as_strided((9, 9), (1, 7)),
    }
    torch.save(state, path)
    expected = torch.load(path, weights_only=True)
    report: dict[str, Any] = {}
    loaded = load_file(path, "cpu", report=report)
    assert same(torch, loaded, expected)
    assert loaded["a"].data_ptr() == loaded["b"].data_ptr()
    assert report["bytes"] < 60_000, "no more than the tensors"
    assert same(torch, dict(iterate(path, device="cpu", window=1000)), expected)
    with safe_open(path) as file:
        assert same(torch, {name: file.get_tensor(name) for name in file.keys()}, expected)
        assert file.get_slice("turned")[3, 5:7].tolist() == large[5:7, 3].tolist()
    half = load_file(path, "cpu", dtype=torch.float16, names=["turned", "one"])
    assert torch.equal(half["turned"], large.t().half())


def test_views_of_one_storage_read_it_once(tmp_path: Path, torch: Any) -> None:
    path, whole = tmp_path / "model.pt", torch.arange(1 << 18)
    views = {f"v{number}": whole[number::64] for number in range(64)}
    torch.save(views, path)
    memory = set()
    for name, tensor in iterate(path, device="cpu", window="1MiB"):
        assert torch.equal(tensor, views[name])
        memory.add(tensor.untyped_storage().data_ptr())
    assert len(memory) == 1


def test_a_checkpoint_of_a_training_has_a_state_dict(tmp_path: Path, torch: Any) -> None:
    path = tmp_path / "last.ckpt"
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.Adam(module.parameters())
    module(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    state = {"epoch": 3, "optimizer": optimizer.state_dict(), "state_dict": module.state_dict()}
    torch.save(state, path)
    assert same(torch, load_file(path, "cpu"), module.state_dict())
    torch.save(optimizer.state_dict(), path)
    with pytest.raises(FormatError, match="`state` in it is of type `dict`.*weights_only=True"):
        load_file(path, "cpu")


def test_a_folder_of_bin_files_is_a_model(tmp_path: Path, torch: Any) -> None:
    state = {f"w{number}": torch.randn(10, number) for number in range(1, 7)}
    index = {}
    for number in range(2):
        name = f"pytorch_model-0000{number + 1}-of-00002.bin"
        shard = dict(list(state.items())[number::2])
        torch.save(shard, tmp_path / name)
        index |= dict.fromkeys(shard, name)
    torch.save({"not": "a model"}, tmp_path / "training_args.bin")
    assert same(torch, load_file(tmp_path, "cpu"), state)
    path = tmp_path / "pytorch_model.bin.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    for paths in (tmp_path, path):
        assert same(torch, load_file(paths, "cpu"), state)
    forebay.safetensors.save_file({"new": torch.ones(1)}, tmp_path / "model.safetensors")
    assert load_file(tmp_path, "cpu").keys() == {"new"}


def test_old_files_are_to_be_converted(tmp_path: Path, torch: Any) -> None:
    path = tmp_path / "model.pt"
    old = [b"\xff" * 257 + b"ustar" + bytes(1000)]
    for protocol in range(2, 6):
        how = {"_use_new_zipfile_serialization": False, "pickle_protocol": protocol}
        torch.save({"a": torch.ones(3)}, path, **how)
        old.append(path.read_bytes())
    for raw in old:
        path.write_bytes(raw)
        with pytest.raises(FormatError, match=r"before 1\.6.*convert it: `save_file\(torch\.load"):
            load_file(path, "cpu")


def test_a_file_with_a_header_is_no_tensor(tmp_path: Path, torch: Any) -> None:
    import forebay.torch

    path, state = tmp_path / "file", {"a": torch.ones(3)}
    into = torch.zeros(5, dtype=torch.uint8)

    def check(what: str, hint: str) -> None:
        with pytest.raises(FormatError, match=f"it is a file of {what}.*{hint}"):
            forebay.torch.load(path, torch.uint8, device="cpu")
        with pytest.raises(FormatError, match=f"it is a file of {what}.*{hint}"):
            forebay.torch.load_into(path, into)
        assert into.tolist() == [0] * 5
        raw = path.read_bytes()
        assert bytes(forebay.torch.load(path, torch.uint8, 9, "cpu", offset=1).tolist()) == raw[1:10]
        assert forebay.torch.load_into(path, into, 1) == 5
        into.zero_()

    forebay.torch.save_checkpoint(path, state)
    check("safetensors", "`forebay.load_file`")
    whole = path.read_bytes()
    torch.save(state, path)
    check("`torch.save`", "`forebay.load_file`")
    torch.save(state, path, _use_new_zipfile_serialization=False)
    check("`torch.save`", "`save_file")
    # What only begins like one has elements.
    with zipfile.ZipFile(tmp_path / "zip", "w") as made:
        made.writestr("a", "b")
    starts = [b"", b"P", b"PK\3\4", (tmp_path / "zip").read_bytes(), b"\x80\2", b"{" * 100]
    for raw in [*starts, whole[:-1], whole + b"\0", b"\2" + bytes(7) + b"{}" + bytes(90)]:
        path.write_bytes(raw)
        assert bytes(forebay.torch.load(path, torch.uint8, device="cpu").tolist()) == raw


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
def test_a_program_of_torchscript_is_named(tmp_path: Path, torch: Any) -> None:
    torch.jit.save(torch.jit.trace(torch.nn.Linear(3, 3), torch.ones(3)), path := tmp_path / "a.pt")
    for load in (load_file, safe_open):
        with pytest.raises(FormatError, match=r"a program of TorchScript \(load it by `torch.jit"):
            load(path)
