"""Files that change while a GPU computes with their layers: old bytes, new ones, or an error."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import forebay
import pytest
from tensors import device_or_skip, torch_or_skip

torch = torch_or_skip()

from late import (  # noqa: E402  # after it is known that there is a torch
    ALL,
    BUSY,
    LAYERS,
    SETTLED,
    Copy,
    Model,
    compare,
    held,
    queued,
    settle,
)
from forebay.stream import LayerStream  # noqa: E402


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    device_or_skip("cuda")
    made = Model(tmp_path / "model")
    yield made
    torch.cuda.synchronize()
    made.file.close()


def write_over(path: Path, data: bytes, flags: int) -> None:
    """Writes all whole pages of a file, in place."""
    length = len(data) // 4096 * 4096
    # Direct writes take memory that begins where a page does.
    with mmap.mmap(-1, length) as memory:
        memory[:] = data[:length]
        try:
            file = os.open(path, os.O_WRONLY | flags)
        except OSError as error:
            if flags:
                pytest.skip(f"this folder takes no direct writes: {error}")
            raise
        try:
            assert os.pwrite(file, memory, 0) == length
        finally:
            os.close(file)


def replace(path: Path, data: bytes) -> None:
    """Puts another file in the place of this one."""
    other = path.with_suffix(".new")
    other.write_bytes(data)
    other.rename(path)


def pinned(model: Model) -> tuple[LayerStream, list[Copy]]:
    """A stream whose pages are pinned, and copies of the first two layers of a pass.

    The third is on the GPU as well then, and there is no room for the fourth."""
    time.sleep(SETTLED)
    stream = model.stream(mapped_budget=ALL)
    settle(model, stream)
    seen = [queued(layer) for layer in islice(stream, 2)]
    # A copy that has just ended looks like one in progress.
    torch.cuda.synchronize()
    time.sleep(0.1)
    return stream, seen


@pytest.mark.parametrize("flags", [0, os.O_DIRECT], ids=["page cache", "direct"])
def test_bytes_overwritten_in_a_pass_are_read_again_or_reported(model: Model, flags: int) -> None:
    changed = bytes(byte ^ 0xFF for byte in model.data)
    stream, before = pinned(model)
    write_over(model.path, changed, flags)
    reported, seen = [], []
    # No layer is reported twice, so this ends.
    for _ in range(2 * LAYERS + 1):
        try:
            seen.append(queued(next(stream)))
        except StopIteration:
            break
        except forebay.FileChanged as error:
            reported.append(error.layer)
    else:
        pytest.fail(f"the pass does not end: {reported}")
    compare(model, before)
    print(f"reported {reported}, after it {[number for number, _, _ in seen]}")
    assert set(reported) <= {"layer 2"}, "the others are requested after the change"
    # The third came before; without a report all its bytes are of one time.
    third = [held(copy, places) for number, copy, places in seen if number == 2]
    wanted = (model.of(2), model.of(2, changed))
    assert reported or (len(third) == 1 and third[0] in wanted)
    assert [number for number, _, _ in seen if number > 2] == list(range(3, LAYERS))
    compare(model, [one for one in seen if one[0] > 2], changed)
    whole = [queued(layer) for layer in stream]
    assert [number for number, _, _ in whole] == list(range(LAYERS))
    # The first two come once the pass before is over, and so after the change.
    compare(model, whole, changed)
    stream.close()


@pytest.mark.parametrize("change", [replace, lambda path, _: path.unlink()], ids=["other", "none"])
def test_a_removed_file_keeps_its_contents(
    model: Model, change: Callable[[Path, bytes], object]
) -> None:
    stream, seen = pinned(model)
    change(model.path, bytes(len(model.data)))
    seen += [queued(layer) for layer in stream]
    assert [number for number, _, _ in seen] == list(range(LAYERS))
    seen += [queued(layer) for _ in range(2) for layer in stream]
    stream.close()
    compare(model, seen)


def test_a_file_that_is_cut_in_a_pass_fails_its_layer_each_time(model: Model) -> None:
    stream, seen = pinned(model)
    os.truncate(model.path, model.at[3][0] + 4097)
    failed = []
    for _ in range(5):
        try:
            seen.append(queued(next(stream)))
        except forebay.EndOfFile as error:
            failed.append(error.layer)
    print(f"failed {failed}, after it {[number for number, _, _ in seen]}")
    # The third came before, and may be reported once as one whose file has changed.
    assert failed.count("layer 2") <= 1
    assert set(failed[-3:]) == {"layer 3"}
    compare(model, seen)
    with suppress(forebay.EndOfFile, forebay.FileChanged):
        stream.close()


def test_a_pass_after_a_change_has_what_was_written(model: Model) -> None:
    changed = bytes(byte ^ 0xFF for byte in model.data)
    with model.stream(check=True, mapped_budget=0) as stream:
        compare(model, [queued(layer) for layer in stream])
        torch.cuda.synchronize()
        # In place: a file that is cut for a moment fails what is read of it meanwhile.
        write_over(model.path, changed, 0)
        # Two layers of the next pass may have come before.
        compare(model, [queued(layer) for layer in stream][2:], changed)
        compare(model, [queued(layer) for layer in stream], changed)


def test_a_file_that_changes_under_its_copies_is_reported(model: Model) -> None:
    time.sleep(SETTLED)
    stream = model.stream(mapped_budget=ALL)
    settle(model, stream)
    # The copy of the third waits for the compute of the first when its bytes change.
    seen = [queued(layer, 30 * BUSY) for layer in islice(stream, 3)]
    time.sleep(0.1)
    write_over(model.path, bytes(len(model.data)), 0)
    reported, until = [], time.monotonic() + 60
    # A caller that runs ahead of the copies gets the error once they are over.
    while not reported and time.monotonic() < until:
        try:
            for layer in stream:
                held(*queued(layer, 1)[1:])
        except forebay.FileChanged as error:
            reported.append((error.layer, error.bytes))
    assert reported == [("layer 2", None)]
    list(stream)
    compare(model, [queued(layer) for layer in stream], bytes(len(model.data)))
    compare(model, seen[:2])
    stream.close()
