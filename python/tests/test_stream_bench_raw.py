"""The streaming bench's plain reads, which say what a drive gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from forebay.stream_bench import raw, table


def test_plain_reads_bring_whole_layers_by_any_kind(tmp_path: Path) -> None:
    path, nbytes = tmp_path / "layers", 3 * 4096 * 257
    path.write_bytes(bytes(4 * nbytes))
    reads = raw.Raw(path, nbytes, [2, 0, 2])
    assert reads.kind in raw.KINDS and reads.tried.keys() == set(raw.KINDS)
    assert sorted({len(tries) for tries in reads.tried.values()}) == [1, 3]
    assert all(reads.read([3, 1], kind) > 0 for kind in raw.KINDS)
    reported = reads.described()
    kinds = [(one["threads"], one["request_bytes"]) for one in reported["tried"]]
    assert kinds == raw.KINDS and (reported["threads"], reported["request_bytes"]) == reads.kind
    assert reported["past_page_cache"] == reads.is_direct
    threads, size = reads.kind
    printed = f"plain reads: {threads} threads, block size {size >> 20} MiB, with"
    assert table.plain_reads(reported).startswith(printed) and table.plain_reads(None) == ""
    os.truncate(path, 3 * nbytes + 4096)
    with pytest.raises(OSError, match="cannot read `.*` at .*: it ends there"):
        reads.read([3])
