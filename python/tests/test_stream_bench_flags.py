"""The streaming bench's command line: what is refused, and what is taken."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from forebay.stream_bench import arguments, sources, theory

WRONG = [
    ("--layers 1", "--layers: it takes a whole number, 2 or more, not `1`"),
    ("--layer-mb big", "--layer-mb: it takes a whole number, 1 or more, not `big`"),
    ("--tokens 8192,,1", "--tokens: it takes a whole number, 1 or more, not ``"),
    ("--tokens -5", "--tokens: it takes a whole number, 1 or more, not `-5`"),
    ("--order sideways", "--order: it takes one of forward, backward, train, not `sideways`"),
    ("--from tape", "--from: it takes one of drive, page-cache, slots, pinned, half, not `tape`"),
    ("--ways forebay,x", "--ways: it takes one of forebay, two-buffers, mmap, not `x`"),
    ("--buffers 1", "--buffers: it takes a whole number, 2 or more, not `1`"),
    ("--buffers 4", "--buffers: it takes at most --layers, 3, not `4`: each pass begins with none "
     "of its layers on the GPU"),
    ("--from drive --passes 2", "--passes: it takes 1 if a drive is read, not `2`: the layers are "
     "evicted before each pass"),
    ("--passes 0", "--passes: it takes a whole number, 1 or more, not `0`"),
    ("--rounds 1.5", "--rounds: it takes a whole number, 1 or more, not `1.5`"),
    ("--seed -1", "--seed: it takes a whole number, 0 or more, not `-1`"),
    ("--hidden 0", "--hidden: it takes a whole number, 1 or more, not `0`"),
    ("--query-heads 0", "--query-heads: it takes a whole number, 1 or more, not `0`"),
    ("--query-heads 97", "--query-heads: it takes a multiple of --key-heads, 8, not `97`"),
    ("--key-heads x", "--key-heads: it takes a whole number, 1 or more, not `x`"),
    ("--head 100", "--head: it takes a multiple of 8, up to 256, not `100`"),
    ("--expert 0", "--expert: it takes a whole number, 1 or more, not `0`"),
    ("--active 0", "--active: it takes a whole number, 1 or more, not `0`"),
    ("--file none/there", "--file: it takes a file in an existing folder, not in `none`"),
    ("--file .", "--file: it takes a file, and `.` is not a file"),
    ("--file short --layer-mb 1", "--file: `short` has 3 bytes, but two sets of layers have "
     "5,996,544: give another file, or remove it"),
    ("--out short", "--out: it takes a folder, and `short` is not a folder"),
    ("--out short/deep", "--out: it takes a folder, and `short` is not a folder"),
    ("--layer 3", "there is no flag `--layer`\nhint: perhaps `--layers` was meant"),
    ("--xyz=3", "there is no flag `--xyz`\nhint: `--help` lists the arguments"),
    ("--rounds 1 2", "unexpected argument `2`\nhint: `--help` lists the arguments"),
    ("--rounds", "--rounds: expected one argument"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), WRONG)
def test_wrong_flags_are_reported_in_a_line(
    line: str,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("short").write_bytes(b"abc")
    with pytest.raises(SystemExit) as ended:
        arguments.given(line.split())
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", f"error: {expected}\n")
    assert Path("short").read_bytes() == b"abc"


def test_flags_that_make_sense(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = arguments.given([])
    assert (found.layers, found.tokens, found.order, found.source) == (
        3, [8192], "forward", "page-cache",
    )  # fmt: skip
    assert found.buffers == 3 and arguments.given(["--layers", "2"]).buffers == 2
    assert arguments.given(["--order", "training"]).order == "train"
    assert found.layer_bytes == 1_236_996_096 and found.layer_bytes % 4096 == 0
    for order, source in itertools.product(theory.ORDERS, sources.SOURCES):
        line = f"--tokens 512,1024,512 --order {order} --from {source} --ways mmap --out new/deep"
        found = arguments.given(line.split())
        assert found.tokens == [512, 1024] and found.ways == ["mmap"]
        assert (found.order, found.source, found.out) == (order, source, Path("new/deep"))
