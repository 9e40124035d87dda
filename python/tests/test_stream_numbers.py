"""Numbers that a stream of layers is given: of which types, and which are refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import content
from forebay.stream import LayerStream

LAYERS, NBYTES = 5, 300_000

Parts = list[tuple[forebay.File, int, int]]


@pytest.fixture
def layers(engine: forebay.Engine, tmp_path: Path) -> list[Parts]:
    """Layers of one part each."""
    path = tmp_path / "model"
    path.write_bytes(content(LAYERS * NBYTES))
    file = engine.open(path)
    return [[(file, layer * NBYTES, NBYTES)] for layer in range(LAYERS)]


class Number:
    """A number of another library, which has an iterator as well, as an array of one item has."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number

    def __iter__(self) -> Iterator[int]:
        raise TypeError("iteration over a 0-d array")


class Array:
    """Numbers of another library: more than one are none."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def __index__(self) -> int:
        raise TypeError("only arrays of one item are numbers")

    def __iter__(self) -> Iterator[Number]:
        return map(Number, self.numbers)


def test_a_layer_is_named_by_any_number(engine: forebay.Engine, layers: list[Parts]) -> None:
    given: list[Any] = [1, True, Number(1), Array(4, 0), range(2), (n for n in [Number(3)])]
    with LayerStream(layers, "sim", order="appended", engine=engine) as stream:
        for reported in given:
            stream.prefetch(reported)
        assert [layer.index for layer in stream] == [1, 1, 1, 4, 0, 0, 1, 3]
    options: dict[str, Any] = {"gpu_budget": Number(2 * NBYTES), "host_budget": Number(0)}
    options |= {"passes": Number(1), "order": [Number(2), 0]}
    with LayerStream(layers, "sim", engine=engine, **options) as stream:
        assert [layer.index for layer in stream] == [2, 0] and list(stream) == []


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_layer_is_named_by_a_librarys_numbers(
    engine: forebay.Engine, layers: list[Parts], library: str
) -> None:
    module = pytest.importorskip(library)
    asarray = module.asarray
    with LayerStream(layers, "sim", order="appended", engine=engine) as stream:
        stream.prefetch(asarray(1))
        stream.prefetch(asarray([3, 0])[0])
        stream.prefetch(asarray([4, 2]))
        assert [layer.index for layer in stream] == [1, 3, 4, 2]
        with pytest.raises(TypeError, match="`prefetch` cannot be `.*1.5.*`: it takes numbers of"):
            stream.prefetch(asarray(1.5))
    if library == "numpy":
        with LayerStream(layers, "sim", passes=module.int64(1), engine=engine) as stream:
            assert len(list(stream)) == LAYERS and list(stream) == []


@pytest.mark.parametrize("given", [-1, 1 << 64, Array(0, -1)])
def test_a_number_that_is_no_layers_is_refused(
    engine: forebay.Engine, layers: list[Parts], given: Any
) -> None:
    wrong = -1 if isinstance(given, Array) else given
    expected = "it takes numbers of the 5 layers, from 0"
    with LayerStream(layers, "sim", order="appended", engine=engine) as stream:
        with pytest.raises(forebay.RequestError, match=f"`prefetch` cannot be `{wrong}`: "):
            stream.prefetch(given)
        for no_number in [None, "1", [0.5]]:
            with pytest.raises(TypeError, match=f"`prefetch` cannot be `.*`: {expected}"):
                stream.prefetch(no_number)  # type: ignore[arg-type]
        assert list(stream) == []
    order: Any = given if isinstance(given, Array) else [0, given]
    with pytest.raises(ValueError, match=f"`order` cannot be `a list with {wrong}`: {expected}"):
        LayerStream(layers, "sim", order=order, engine=engine)
    [stream] = LayerStream.group(layers, ["sim"], order="appended", engine=engine)
    with stream, pytest.raises(ValueError, match=f"`prefetch` cannot be `{wrong}`: {expected}"):
        stream.prefetch(given)


@pytest.mark.parametrize("wrong", [-1, 1 << 64])
@pytest.mark.parametrize("name", ["passes", "gpu_budget", "host_budget", "mapped_budget"])
def test_an_option_below_zero_or_too_large_is_refused(
    engine: forebay.Engine, layers: list[Parts], name: str, wrong: int
) -> None:
    unit = "loops" if name == "passes" else "bytes"
    expected = rf"it takes a whole number of {unit}, from 0 to 2\*\*64 - 1"
    make: list[Callable[..., Any]] = [
        lambda **options: LayerStream(layers, "sim", engine=engine, **options),
        lambda **options: LayerStream.group(layers, ["sim", "sim"], engine=engine, **options),
    ]
    for call in make:
        with pytest.raises(forebay.RequestError, match=f"`{name}` cannot be `{wrong}`: {expected}"):
            call(**{name: wrong})
        with pytest.raises(TypeError, match=f"`{name}` cannot be `1.5`: {expected}"):
            call(**{name: 1.5})


@pytest.mark.parametrize("wrong", [-1, 1 << 64])
def test_a_part_below_zero_or_too_large_is_refused(
    engine: forebay.Engine, layers: list[Parts], wrong: int
) -> None:
    [(file, _, _)] = layers[0]
    for name, part in [("offset", (file, wrong, 10)), ("length", (file, 0, wrong))]:
        text = f"`{name} of part 1 of block` cannot be `{wrong}`: it takes a whole number of bytes"
        with pytest.raises(ValueError, match=text):
            LayerStream([[(file, 0, 10), part]], "sim", names=["block"], engine=engine)


def test_the_least_budget_is_named_once_if_layers_are_not_cut(
    engine: forebay.Engine, layers: list[Parts]
) -> None:
    with pytest.raises(ValueError, match="600000 bytes at least, for two layers$"):
        LayerStream(layers, "sim", gpu_budget=1000, engine=engine)
    [(file, _, _)] = layers[0]
    cut = [[(file, 0, 256_000), (file, 256_000, 44_000)]]
    least = "600000 bytes at least, for two layers, or 512000 for two slices of a layer, which"
    with pytest.raises(ValueError, match=least):
        LayerStream(cut, "sim", gpu_budget=1000, engine=engine)


def test_an_error_of_a_cut_file_has_the_bytes_that_arrived(
    engine: forebay.Engine, layers: list[Parts], tmp_path: Path
) -> None:
    budgets: dict[str, Any] = {"gpu_budget": 2 * NBYTES, "mapped_budget": 0}
    with LayerStream(layers, "sim", engine=engine, **budgets) as stream:
        next(stream)
        # In the middle of a layer that is read by one request: of two, either may end first.
        os.truncate(tmp_path / "model", 2 * NBYTES + 10)
        next(stream)
        # It is the layer that would be next, and each call tries it again.
        for _ in range(2):
            with pytest.raises(forebay.EndOfFile) as error:
                next(stream)
            assert error.value.layer == "layer 2" and error.value.bytes == 10
