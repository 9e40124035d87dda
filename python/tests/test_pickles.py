"""Our interpreter of pickles against CPython's: what it accepts has one meaning."""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import random
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from forebay._forebay import Global, Record, unpickled

KNOBS = [("SEED", 0), ("STRESS", 1)]
DAILY = 3000


class StandIn:
    """What a class of a pickle makes; a call has an `__init__`, `__new__` alone has not."""

    title: str

    def __new__(cls, *given: Any) -> StandIn:
        made = object.__new__(cls)
        made.given, made.is_new, made.state = given, True, None
        made.items, made.pairs = [], []
        return made

    def __init__(self, *_: Any) -> None:
        self.is_new = False

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.pairs.append((key, value))

    def __setstate__(self, state: Any) -> None:
        self.state = state


class Theirs(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return type("StandIn", (StandIn,), {"title": f"{module}.{name}"})

    def persistent_load(self, given: Any) -> Any:
        return self.find_class("", "persistent")(given)


def record(*fields: Any) -> tuple[Any, ...]:
    return ("record", *fields)


def dictionary(pairs: Any) -> tuple[Any, ...]:
    return ("dict", *dict(pairs).items())


def plain(value: Any) -> Any:
    """A value of either side, to be compared."""
    match value:
        case Global():
            return ("global", value.name)
        case type():
            return ("global", value.title)
        case Record(name="builtins.dict", arguments=()):
            return dictionary(zip(map(plain, value.keys), map(plain, value.values), strict=True))
        case Record(name="builtins.set" | "builtins.frozenset", arguments=()) if value.items:
            return ("set", *sorted(map(repr, {plain(one) for one in value.items})))
        case Record():
            pairs = zip(map(plain, value.keys), map(plain, value.values), strict=True)
            name = "." + value.name if value.name == "persistent" else value.name
            items = tuple(map(plain, value.items))
            given = plain(value.arguments)
            return record(name, value.is_new, given, items, tuple(pairs), plain(value.state))
        case StandIn():
            pairs = ((plain(key), plain(one)) for key, one in value.pairs)
            items = tuple(map(plain, value.items))
            state = plain(value.state)
            return record(value.title, value.is_new, plain(value.given), items, tuple(pairs), state)
        case dict():
            return dictionary((plain(key), plain(one)) for key, one in value.items())
        case set() | frozenset() if value:
            return ("set", *sorted(map(repr, {plain(one) for one in value})))
        case set() | frozenset():
            return record(f"builtins.{type(value).__name__}", False, plain(()), (), (), None)
        case list() | tuple():
            return (type(value).__name__, *map(plain, value))
        case bytearray():
            return ("bytearray", bytes(value))
    return value


def accepted(data: bytes) -> bool:
    """Whether ours reads a pickle; CPython then has to read the same."""
    try:
        ours = unpickled(data, len(data))
    except ValueError as error:
        assert 0 < len(str(error)) < 300
        return False
    try:
        theirs = Theirs(io.BytesIO(data), fix_imports=False).load()
    except TypeError as error:
        assert "unhashable" in str(error), data
        return False
    assert repr(plain(ours)) == repr(plain(theirs)), data
    *_, (last, _, position) = pickletools.genops(data)
    assert last.name == "STOP" and position == len(data) - 1, data
    return True


def text(value: bytes) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value


NAMES = b"c_m\nn\n"
# Operands, and what has to be on the stack before them.
BEFORE = {
    b"t": b"(", b"\x85": b"N", b"\x86": b"NN", b"\x87": b"NNN", b"\x91": b"(K\1", b"a": b"]N",
    b"e": b"](N", b"s": b"}NN", b"u": b"}(NN", b"\x90": b"\x8f(N", b"R": NAMES + b")",
    b"\x81": NAMES + b")", b"b": NAMES + b")RN", b"Q": b"N", b"q": b"]", b"r": b"]", b"\x94": b"]",
    b"h": b"]q\0", b"j": b"]q\0", b"\x93": text(b"m") + text(b"n"), b".": b"N",
}  # fmt: skip
OPERANDS = {
    b"K": [b"\7", b"\xff"], b"M": [b"\1\2"], b"J": [b"\xff\xff\xff\xff", b"\1\0\0\x80"],
    b"G": [struct.pack(">d", 1.5)], b"\x8a": [b"\0", b"\1\xff", b"\x09" + b"\xff" * 8 + b"\0"],
    b"\x8b": [b"\2\0\0\0\1\2"], b"C": [b"\0", b"\3abc"], b"B": [b"\3\0\0\0abc"],
    b"\x8c": [b"\0", b"\2\xc3\xa9", b"\3\xed\xa0\x80", b"\1\xff"], b"X": [b"\2\0\0\0ab"],
    b"\x8d": [b"\2" + bytes(7) + b"ab"], b"\x8e": [b"\2" + bytes(7) + b"ab"],
    b"\x96": [b"\2" + bytes(7) + b"ab"], b"c": [b"m\nn\n", b"m\r\nn.x\n"], b"q": [b"\0", b"\1"],
    b"r": [bytes(4), b"\xff" * 4], b"h": [b"\0", b"\1"], b"j": [bytes(4)], b"\x80": [b"\2", b"\4"],
    b"\x95": [bytes(8), b"\1" + bytes(7)], b"I": [b"1\n", b"01\n"], b"L": [b"1L\n"], b"F": [b"1\n"],
    b"S": [b"'a'\n"], b"V": [b"a\n"], b"U": [b"\1a"], b"T": [b"\1\0\0\0a"], b"p": [b"0\n"],
    b"g": [b"0\n"], b"P": [b"a\n"], b"i": [b"m\nn\n"], b"\x82": [b"\1"], b"\x83": [b"\1\0"],
    b"\x84": [b"\1\0\0\0"],
}  # fmt: skip
NEVER = b"\x8bIFLSVUTpgPio\x82\x83\x84012\x8d\x8e\x92\x97\x98ld\x80"
"""Opcodes that no pickler of protocol 2 to 5 writes for a file of torch, or only elsewhere."""


@pytest.mark.parametrize("opcode", pickletools.opcodes, ids=lambda opcode: opcode.name)
def test_every_opcode_at_every_end_of_a_frame(opcode: Any) -> None:
    code = opcode.code.encode("latin1")
    taken = 0
    for operand in OPERANDS.get(code, [b""]):
        body = BEFORE.get(code, b"") + code + operand
        for rest in (b"", b".", b"0N.", b"t.", b"N.", b"\x85.", b"\x86."):
            for protocol in range(2, 6):
                start = bytes([0x80, protocol])
                taken += accepted(start + body + rest)
                for size in range(len(body + rest) + 3):
                    frame = b"\x95" + struct.pack("<Q", size)
                    taken += accepted(start + frame + body + rest)
    assert (taken > 0) == (code not in NEVER)


def drawn(draw: random.Random) -> bytes:
    """An operation."""
    code = draw.choice([*BEFORE, *OPERANDS, b"N", b"\x88", b")", b"]", b"}", b"\x8f", b"("])
    if code in (b"h", b"q"):
        return code + bytes([draw.randrange(6)])
    if code == b"\x95":
        return code + struct.pack("<Q", draw.randrange(20))
    return code + draw.choice(OPERANDS.get(code, [b""]))


def test_random_pickles_have_one_meaning() -> None:
    first, rounds = (int(os.environ.get(f"FOREBAY_{name}", one)) for name, one in KNOBS)
    taken = 0
    for seed in range(first, first + DAILY * rounds):
        draw = random.Random(seed)
        data = bytes([0x80, draw.randrange(2, 6)])
        for _ in range(draw.randrange(1, 30)):
            more = data + drawn(draw)
            try:
                unpickled(more, len(more))
            except ValueError as error:
                if "truncated" in str(error):
                    data = more
        for end in (b".", b"t.", b"\x85.", b"\x86.", b"a.", b"e.", b"s.", b"u.", b"N."):
            try:
                taken += accepted(data + end)
            except Exception as error:
                raise AssertionError(f"FOREBAY_SEED={seed}") from error
    assert taken > DAILY * rounds // 10, taken


def pickled(value: Any, protocol: int) -> list[bytes]:
    """What CPython's two picklers write."""
    stream = io.BytesIO()
    pickle._Pickler(stream, protocol).dump(value)  # type: ignore[attr-defined]
    return [pickle.dumps(value, protocol), stream.getvalue()]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_what_picklers_write_is_read(protocol: int) -> None:
    shared = ["shared", 1.5]
    values = [
        {"a": shared, "b": shared, "c": (shared, {}), "d": OrderedDict(a=1, b=2)},
        [0, 255, 256, -1, 65536, 2**31, -(2**63), 2**127, True, None, 1e300],
        ["", "é", "\ud800", "x" * 300, "y" * 70_000, b"", b"z" * 70_000, bytearray(b"b" * 300)],
        [{n: str(n) for n in range(3000)}, set(range(3000)), frozenset("ab"), {1, 2}],
        [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [[[]]], complex(1, 2), Path("a/b")],
    ]
    for value in values:
        for data in pickled(value, protocol):
            assert accepted(data)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_what_torch_saves_is_read(protocol: int, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from zipfile import ZipFile

    from forebay.safetensors import load_file

    path, whole = tmp_path / "model.pt", torch.arange(12.0).reshape(3, 4)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    states: list[dict[str, Any]] = [
        {"a": whole, "tied": whole, "row": whole[1], "turned": whole.t(), "of": whole[:, 1::2]},
        {"p": torch.nn.Parameter(whole), "e": torch.empty(0, 3), "f8": whole.to(torch.float8_e5m2)},
        dict(module.state_dict()),
        {f"layer.{number}.weight": whole for number in range(2000)},
    ]
    for state in [*states, module.state_dict()]:
        torch.save(state, path, pickle_protocol=protocol)
        [data] = [ZipFile(path).read(name) for name in ZipFile(path).namelist() if "pkl" in name]
        assert accepted(data)
        loaded = load_file(path, "cpu")
        assert loaded.keys() == state.keys()
        assert all(loaded[name].tolist() == tensor.tolist() for name, tensor in state.items())
    torch.save({"sparse": whole.to_sparse()}, path, pickle_protocol=protocol)
    with pytest.raises(ValueError, match="calls `torch"):
        load_file(path, "cpu")
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    dcp.save({"a": whole, "b": 3}, storage_writer=dcp.FileSystemWriter(tmp_path), no_dist=True)
    metadata = pickle.loads((tmp_path / ".metadata").read_bytes())
    for data in pickled(metadata, protocol):
        assert accepted(data)


BOMBS = {
    "laughs": b")\x94" + b"".join(b"h%ch%c\x86\x94" % (n, n) for n in range(60)),
    "the memo": b"Nr\xff\xff\xff\x03",
    "deep": b"]" * 100_000 + b"a" * 99_999,
    "a long integer": b"\x8b\0\0\1\0" + b"\x55" * 65536,
    "a claim": b"B\xff\xff\xff\x7f",
    "itself": b"]q\0h\0a",
    "twice": b"N.N",
    "nothing": b"",
    "colliding keys": b"}("
    + b"".join(b"\x8a\x09" + (n * (2**61 - 1)).to_bytes(9, "little") + b"N" for n in range(2000))
    + b"u",
}


@pytest.mark.parametrize("kind", BOMBS)
def test_a_bomb_is_refused(kind: str) -> None:
    data = b"\x80\4" + BOMBS[kind] + b"."
    with pytest.raises(ValueError):
        unpickled(data, len(data), keys_max=1000)


def test_a_cut_pickle_is_truncated() -> None:
    data = pickle.dumps({"a": [1, 2.5, "text", (None, b"bytes")]}, 2)
    for end in range(len(data)):
        with pytest.raises(ValueError, match=rf"truncated.*{end} *"):
            unpickled(data[:end], end)
