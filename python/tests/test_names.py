"""Names of files, tensors and layers in messages: none breaks a line or acts on a terminal."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import forebay
import forebay.kvikio as kvikio
import pytest

ACTS = "a\n\r\x1b]0;owned\x07\x7f\x9b31m\u202e\u2066\u200f\u061c\u2028ERROR forged\udcff"
PACKAGE = Path(forebay.__file__).parent


def closed(path: Path) -> None:
    file = forebay.open(path)
    file.close()
    file.read_into(bytearray(1))


def closed_by_kvikio(path: Path) -> None:
    file = kvikio.CuFile(path)
    file.close()
    file.read(bytearray(1))


def mapped(path: Path) -> None:
    import mmap

    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ):
        forebay.open(path, "w")


def named_by_kvikio(path: Path) -> None:
    kvikio.get_page_cache_info(str(path) + "-missing")


def remote(path: Path) -> None:
    kvikio.RemoteFile.open(str(path))


def of_layers(path: Path) -> None:
    from forebay.stream import LayerStream

    with forebay.open(path) as file:
        LayerStream([[(file, -1, 4)]], "sim", names=[path.name])


def no_part(path: Path) -> None:
    from forebay.stream import LayerStream

    LayerStream([[5]], "sim", names=[path.name])  # type: ignore[list-item]


def records(path: Path) -> None:
    torch = pytest.importorskip("torch", reason="no torch")
    from forebay.torch import RecordDataset

    RecordDataset(path, 7, torch.int32, "cpu", batch_size=1)


def elements(path: Path) -> None:
    torch = pytest.importorskip("torch", reason="no torch")
    from forebay.torch import load

    load(path, torch.int64, device="cpu", offset=1)


def not_in_one_piece(path: Path) -> None:
    torch = pytest.importorskip("torch", reason="no torch")
    from forebay.torch import save

    save(path, {path.name: torch.zeros(4, 4).t()})


def no_offset(path: Path) -> None:
    torch = pytest.importorskip("torch", reason="no torch")
    from forebay.torch import save

    save(path, {path.name: torch.zeros(4)}, {"other": 0})


def replaced(path: Path) -> None:
    pytest.importorskip("torch", reason="no torch")
    from forebay.torch import save

    save(path / "file", [])


CALLS: list[Callable[[Path], Any]] = [
    closed,
    closed_by_kvikio,
    mapped,
    named_by_kvikio,
    remote,
    of_layers,
    no_part,
    records,
    elements,
    not_in_one_piece,
    no_offset,
    replaced,
    lambda path: forebay.open(path / "file"),
    lambda path: forebay.open(str(path) + "-missing"),
    lambda path: forebay.open(path).read_into(bytearray(1000)),
]


@pytest.mark.parametrize("call", CALLS)
def test_names_in_messages_are_escaped(tmp_path: Path, call: Callable[[Path], Any]) -> None:
    path = tmp_path / ACTS
    path.write_bytes(bytes(100))
    with pytest.raises(Exception) as raised:
        call(path)
    text = str(raised.value)
    assert "forged" in text and text.isprintable(), repr(text)
    assert "]0;owned" in text


def test_a_note_of_a_failed_close_is_escaped() -> None:
    from forebay._errors import close

    def fails() -> None:
        raise ValueError(ACTS)

    raised = KeyError("the block's own")
    close(fails, raised)
    [note] = raised.__notes__
    assert "forged" in note and note.isprintable()


def test_every_message_has_paths_escaped() -> None:
    raw = re.compile(r"`\{(?![\w.]*(?:shown|shortened)\()[^}`]*(?:path|fsdecode|url|\.name\b)[^}`]*\}")
    for source in PACKAGE.rglob("*.py"):
        if source.name in ("_replace.py", "remote_file.py"):
            continue  # one function there escapes whole texts
        found = raw.findall(source.read_text())
        assert not found, (source, found)


def test_names_that_do_nothing_stay_as_they_are() -> None:
    from forebay._errors import shown

    for name in ["/a/ä b/名前.bin", "C:\\x", "it's", "👍", ""]:
        assert shown(name) == shown(os.fsencode(name)) == name
