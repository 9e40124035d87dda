"""What errors of streams say: which argument, which layer, and what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import content
from forebay.stream import LayerStream

NBYTES = 300_000
MIB = 1 << 20

Parts = list[tuple[forebay.File, int, int]]


@pytest.fixture
def layers(engine: forebay.Engine, tmp_path: Path) -> list[Parts]:
    (tmp_path / "model").write_bytes(content(4 * NBYTES))
    file = engine.open(tmp_path / "model")
    return [[(file, layer * NBYTES, NBYTES)] for layer in range(4)]


ORDERS = "it takes `forward`, `backward`, `training`, `appended`, or a list of layer numbers"

WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"order": None}, TypeError, f"`order` cannot be `None`: {ORDERS}"),
    ({"order": 5}, TypeError, f"`order` cannot be `5`: {ORDERS}"),
    ({"order": b"forward"}, TypeError, f"`order` cannot be `b'forward'`: {ORDERS}"),
    ({"order": "sideways"}, TypeError, f"`order` cannot be `sideways`: {ORDERS}"),
    ({"order": [7]}, ValueError, "`order` cannot be `a list with 7`: it takes numbers of the 4"),
    ({"order": []}, ValueError, "`order` cannot be `an empty list`: it takes one layer at least"),
    ({"progress": 5}, TypeError, "`progress` cannot be `5`: it takes a callable that takes a"),
    ({"gpu_budget": True}, TypeError, "`gpu_budget` cannot be `True`: it takes a whole number"),
    ({"host_budget": False}, TypeError, "`host_budget` cannot be `False`: it takes a whole number"),
    ({"passes": True}, TypeError, "`passes` cannot be `True`: it takes a whole number of loops"),
    ({"names": []}, ValueError, "`names` cannot be `0 names for 4 layers`: it takes one for each"),
    ({"names": ["a"]}, ValueError, "`names` cannot be `1 name for 4 layers`: it takes one"),
    ({"names": "abcd"}, TypeError, "`names` cannot be `abcd`: it takes a list of strings"),
    ({"names": [1, 2, 3, 4]}, TypeError, "`names` cannot be `[1, 2, 3, 4]`: it takes a list of"),
    ({"names": 4}, TypeError, "`names` cannot be `4`: it takes a list of strings"),
]


@pytest.mark.parametrize(("options", "kind", "text"), WRONG)
def test_a_wrong_option_is_named(
    engine: forebay.Engine,
    layers: list[Parts],
    options: dict[str, Any],
    kind: type[Exception],
    text: str,
) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        LayerStream(layers, "sim", engine=engine, **options)
    with pytest.raises(kind, match=re.escape(text)):
        LayerStream.group(layers, ["sim"], engine=engine, **options)


def test_a_wrong_list_of_layers_is_an_error(
    engine: forebay.Engine, layers: list[Parts]
) -> None:
    takes = re.escape("it takes a list of layers, each a list of `(file, offset, length)`")
    [(file, _, _)] = layers[0]
    part = f"{takes}; see part 0 of `layer 0`"
    wrong: list[tuple[Any, str]] = [
        (None, f"`layers` cannot be `None`: {takes}"),
        ("model", f"`layers` cannot be `model`: {takes}"),
        (file, f"`layers` cannot be `.*`: {takes}"),
        ([file], f"{takes}, and `layer 0` is not a list"),
        ([[file]], part),
        ([(file, 0, NBYTES)], part),
        ([[(file, 0)]], part),
        ([[("model", 0, NBYTES)]], part),
    ]
    for given, text in wrong:
        with pytest.raises(TypeError, match=text):
            LayerStream(given, "sim", engine=engine)
        with pytest.raises(TypeError, match=text):
            LayerStream.group(given, ["sim"], engine=engine)


def test_a_place_that_is_no_gpu_is_reported_as_the_device(
    engine: forebay.Engine, layers: list[Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    for device in [None, "cpu", "none"]:
        expected = f"`device` cannot be `{device}`: layers need a GPU"
        with pytest.raises(ValueError, match=expected):
            LayerStream(layers, device, engine=engine)
    with pytest.raises(ValueError, match="`device` cannot be `nowhere`: it takes `cpu`, `cuda`"):
        LayerStream(layers, "nowhere", engine=engine)
    with pytest.raises(forebay.NoDevice) as error:
        LayerStream(layers, "cuda:99", engine=engine)
    assert error.value.hint is not None
    assert "None" not in error.value.hint and '`device="sim"`' in error.value.hint
    for devices in ["sim", 5, None]:
        with pytest.raises(TypeError, match=f"`devices` cannot be `{devices}`: it takes a list"):
            LayerStream.group(layers, devices, engine=engine)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`streams` cannot be `2 streams for 1 GPU`"):
        LayerStream.group(layers, ["sim"], streams=[0, 0], engine=engine)
    with pytest.raises(TypeError, match="takes no `stream`: give `streams`, one for each GPU"):
        LayerStream.group(layers, ["sim"], stream=0, engine=engine)
    with pytest.raises(TypeError, match="a group of streams takes no `budget`$"):
        LayerStream.group(layers, ["sim"], budget=0, engine=engine)


def test_an_invalid_part_is_an_error(engine: forebay.Engine, layers: list[Parts]) -> None:
    with LayerStream(layers, "sim", engine=engine) as stream:
        layer = next(stream)
        assert len(layer[-1].tobytes()) == NBYTES
        wrong: list[Any] = ["x", slice(0, 1), 0.5, None]
        for part in wrong:
            text = re.escape(f"`part` cannot be `{part!r}`: it takes the number of one of its 1")
            with pytest.raises(TypeError, match=text):
                layer[part]


def test_a_layer_that_was_released_is_named(engine: forebay.Engine, layers: list[Parts]) -> None:
    with LayerStream(layers, "sim", engine=engine, names=["a", "b", "c", "d"]) as stream:
        layer = next(stream)
        layer.release()
        with pytest.raises(forebay.RequestError, match="cannot release the layer `a`") as error:
            layer.release()
        assert error.value.layer == "a" and "keep" not in str(error.value)
        for use in (lambda: layer.memory, layer.keep, layer.write_back, lambda: layer[0]):
            with pytest.raises(forebay.RequestError, match="the layer `a`.* or keep it") as error:
                use()
            assert error.value.layer == "a"


def test_a_refusal_names_its_layer(engine: forebay.Engine, layers: list[Parts]) -> None:
    with LayerStream(layers, "sim", engine=engine, gpu_budget=2 * NBYTES + 512) as stream:
        held = [next(stream).keep() for _ in range(2)]
        with pytest.raises(forebay.RequestError, match="there is no room for it") as error:
            next(stream)
        assert error.value.layer == "layer 2" and len(held) == 2
    [(file, _, _)] = layers[0]
    with pytest.raises(forebay.RequestError, match="it has no bytes: leave it") as error:
        LayerStream([layers[0], [(file, 5, 0)]], "sim", engine=engine)
    assert error.value.layer == "layer 1"
    assert "``" not in str(error.value)
    with pytest.raises(forebay.RequestError, match="1200000 bytes: end it there") as error:
        LayerStream([[(file, 1, 4 * NBYTES)]], "sim", engine=engine)
    assert error.value.filename is not None


def test_a_foreign_stream_is_reported_by_its_name(
    engine: forebay.Engine, layers: list[Parts]
) -> None:
    expected = "the compute stream 12345 belongs to another GPU than sim:0"
    with LayerStream(layers, "sim", engine=engine, stream=12345) as stream:
        with pytest.raises(forebay.RequestError, match=expected):
            next(stream)
    with LayerStream(layers, "sim", engine=engine) as stream:
        layer = next(stream)
        with pytest.raises(forebay.RequestError, match="the compute stream 99 belongs"):
            layer.release(99)
        layer.release()


def test_a_known_order_is_not_announced(engine: forebay.Engine, layers: list[Parts]) -> None:
    with LayerStream(layers, "sim", engine=engine) as stream:
        with pytest.raises(ValueError, match="`prefetch` needs a layer stream"):
            stream.prefetch(0)


def test_two_layers_are_enough_without_memory_for_three(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(content(16 * MIB))
    engine = forebay.Engine()
    with engine.open(tmp_path / "model") as file:
        layers = [[(file, layer * 4 * MIB, 4 * MIB)] for layer in range(4)]
        with LayerStream(layers, "sim:memory=10M", engine=engine) as stream:
            assert stream.buffers == 2
            assert [layer.memory.nbytes for layer in stream] == 4 * [4 * MIB]
        with pytest.raises(forebay.DeviceError, match="cannot give layers 12 MiB") as error:
            LayerStream(layers, "sim:memory=10M", engine=engine, gpu_budget=12 * MIB)
        assert error.value.hint is not None and "smaller `gpu_budget`" in error.value.hint


def test_another_simulated_gpu_is_not_taken_for_the_existing_one(
    layers: list[Parts],
) -> None:
    engine = forebay.Engine()
    assert engine.gpu("sim:memory=8M") is not None
    for same in ["sim", "sim:0", "sim:memory=8M"]:
        known = engine.gpu(same)
        assert known is not None and known["memory"] == 8 * MIB
    text = "`gpu` cannot be `sim:memory=1073741824`: it takes `sim:memory=8388608`, the settings"
    with pytest.raises(forebay.RequestError, match=text):
        LayerStream(layers, "sim:memory=1G", engine=engine)
