"""Numbers that a call cannot take are errors that name the argument, wherever a number is an argument."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import pytest
from forebay.blocks import BlockStore
from forebay.safetensors import iterate, load_file, safe_open, save_file, save_sharded
from forebay.stream import LayerStream

numpy = pytest.importorskip("numpy", reason="no NumPy")

BUFFER = bytearray(4096)


class Made:
    """What the calls are made with."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "data").write_bytes(bytes(8192))
        self.file = forebay.open(folder / "data", "r+")
        self.engine = self.file.engine
        self.moved = self.file.start_read_into(BUFFER)
        self.many = self.engine.start_read_many([(self.file, 0, 9, BUFFER)])
        self.model = folder / "model.safetensors"
        save_file({"a": numpy.zeros(4)}, self.model)
        self.store = BlockStore(folder / "store", capacity="8MiB", keep_free=0)

    def read(self, **arrays: Any) -> object:
        whole: Any = {"offsets": [0], "lengths": [1], "at": [0]}
        return self.engine.read_many(files=[self.file], target=BUFFER, **(whole | arrays))

    def opened(self, **options: Any) -> object:
        most: Any = {"capacity": "8MiB", "keep_free": 0}
        return BlockStore(self.folder / "other", **(most | options)).close()

    def layers(self, offset: Any = 0, length: Any = 4, **budgets: Any) -> object:
        return LayerStream([[(self.file, offset, length)]], "sim", **budgets)

    def load(self, **options: Any) -> object:
        return load_file(self.model, framework="numpy", **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("numbers"))


#: Each with the words that its errors have. Those of the second table take fractions.
WHOLE: dict[str, tuple[str, Callable[[Made, Any], object]]] = {
    "read offset": ("offset", lambda made, it: made.file.read_into(BUFFER, it)),
    "read size": ("size", lambda made, it: made.file.read_into(BUFFER, size=it)),
    "start offset": ("offset", lambda made, it: made.file.start_read_into(BUFFER, it)),
    "write offset": ("offset", lambda made, it: made.file.write_from(BUFFER, it)),
    "readv offset": ("offset", lambda made, it: made.file.readv([(it, 1, BUFFER)])),
    "readv length": ("length", lambda made, it: made.file.readv([(0, it, BUFFER)])),
    "writev offset": ("offset", lambda made, it: made.file.writev([(it, 1, BUFFER)])),
    "many offset": ("offset", lambda made, it: made.read(offsets=[it])),
    "many length": ("length", lambda made, it: made.read(lengths=[it])),
    "many at": ("`at|target", lambda made, it: made.read(at=[it])),
    "many file": ("file_of", lambda made, it: made.read(file_of=[it])),
    "address": ("address", lambda made, it: made.file.read_into((it, 4096, "cpu"))),
    "preallocate": ("offset", lambda made, it: made.file.preallocate(it, 1)),
    "preallocate length": ("length|offset", lambda made, it: made.file.preallocate(0, it)),
    "truncate": ("length|truncate", lambda made, it: made.file.truncate(it)),
    "residency": ("offset", lambda made, it: made.file.residency(it)),
    "residency length": ("length", lambda made, it: made.file.residency(0, it)),
    "allocate": ("nbytes|allocate", lambda made, it: made.engine.allocate(it, "cpu")),
    "allocate on a GPU": ("nbytes|allocate", lambda made, it: made.engine.allocate(it, "sim")),
    "seek": ("position", lambda made, it: forebay.RawFile(forebay.open(made.file.name)).seek(it)),
    "rank": ("rank", lambda made, it: made.load(rank=it, world_size=2)),
    "world": ("world_size", lambda made, it: made.load(rank=0, world_size=it)),
    "shard": ("shard|dimension", lambda made, it: made.load(shard=(it, 0, 2))),
    "part": ("shard|part", lambda made, it: made.load(shard=(0, it, 2))),
    "threads": ("threads", lambda made, it: made.opened(threads=it)),
    "budget": ("gpu_budget", lambda made, it: made.layers(gpu_budget=it)),
    "host budget": ("host_budget", lambda made, it: made.layers(host_budget=it)),
    "passes": ("passes", lambda made, it: made.layers(passes=it)),
    "layer offset": ("offset|layer", lambda made, it: made.layers(it)),
    "layer length": ("length|layer", lambda made, it: made.layers(0, it)),
    "readers": ("readers", lambda made, it: forebay.Engine(readers=it)),
    "slots": ("slot_size", lambda made, it: forebay.Engine(slot_size=it)),
}
FRACTIONS: dict[str, tuple[str, Callable[[Made, Any], object]]] = {
    "result": ("timeout", lambda made, it: made.moved.result(it)),
    "exception": ("timeout", lambda made, it: made.moved.exception(it)),
    "many result": ("timeout", lambda made, it: made.many.result(it)),
    "block result": ("timeout", lambda made, it: made.store.start_exists(["a"]).result(it)),
    "block timeout": ("timeout", lambda made, it: made.opened(timeout=it)),
    "ttl": ("ttl", lambda made, it: made.opened(ttl=it)),
    "watchdog": ("watchdog", lambda made, it: forebay.Engine(watchdog=it)),
    "capacity": ("capacity", lambda made, it: made.opened(capacity=it)),
    "keep_free": ("keep_free", lambda made, it: made.opened(keep_free=it)),
    "memory": ("memory", lambda made, it: made.opened(memory=it)),
    "window": ("window", lambda made, it: safe_open(made.model, "np", window=it)),
    "iterate": (
        "window", lambda made, it: list(iterate(made.model, framework="numpy", window=it))
    ),
    "shards": (
        "size",
        lambda made, it: save_sharded(
            {"a": numpy.zeros(4)}, made.folder / "shards", max_shard_size=it
        ),
    ),
}

WRONG = [
    -1, 2**63, 2**64 - 1, 2**64, 2**70, -(2**70), numpy.int64(-1), numpy.uint64(2**64 - 1), True,
    float("nan"), "many", 10**400,
]


@pytest.mark.parametrize("call", [*WHOLE, *FRACTIONS])
def test_a_number_out_of_range_is_an_error_that_names_its_argument(made: Made, call: str) -> None:
    name, run = WHOLE.get(call) or FRACTIONS[call]
    wrong = WRONG if call in FRACTIONS else [*WRONG, 1.5, numpy.float64(2)]
    refused = 0
    for value in wrong:
        try:
            run(made, value)
        except (ValueError, OverflowError, TypeError, TimeoutError, MemoryError, forebay.Error) as error:
            refused += 1
            text = str(error)
            assert "too large" not in text and "too big" not in text, (value, text)
            is_number = not isinstance(value, float | str | numpy.floating)
            assert not is_number or re.search(name, text) or isinstance(error, OSError), (value, text)
    assert refused >= 1, "nothing is out of range"
    if call not in ("block result", "keep_free", "shard") and "timeout" not in name:
        with pytest.raises((ValueError, OverflowError)):
            run(made, -1)
    if name in ("timeout", "ttl"):
        with pytest.raises(ValueError, match=f"`{name}` cannot be `?nan"):
            run(made, float("nan"))
