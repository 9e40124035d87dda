"""LMCache's L2 adapter `native_plugin` in a store of blocks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lmcache.v1.distributed.l2_adapters", reason="no LMCache")


def adapter(root: Path, **options: Any) -> dict[str, Any]:
    """The configuration of `docs/kv-cache.md`."""
    given = {"root": str(root), "capacity": "256MiB", "keep_free": 0, **options}
    return {
        "type": "native_plugin",
        "module_path": "forebay.lmcache",
        "class_name": "Client",
        "adapter_params": given,
    }


@pytest.mark.parametrize("page_cache", [False, True])
@pytest.mark.parametrize("size", ["18", "549"])  # KB, and with the second no whole sectors
def test_its_own_benchmark_verifies_the_data(tmp_path: Path, page_cache: bool, size: str) -> None:
    config = json.dumps(adapter(tmp_path, page_cache=page_cache))
    command = Path(sys.executable).parent / "lmcache"
    options = ["--num-keys", "16", "--in-flight", "4", "--data-size-kb", size, "--rounds", "2"]
    ran = subprocess.run(
        [str(command), "bench", "l2", "--l2-adapter", config, "--no-skip-verify", *options],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "verified OK" in ran.stdout + ran.stderr


def test_keys_are_deleted_and_partial_hits_are_told(tmp_path: Path) -> None:
    import select

    from forebay.lmcache import Client

    client = Client(**adapter(tmp_path)["adapter_params"])

    def ended(number: int) -> Any:
        assert select.select([client.event_fd()], [], [], 20)[0], "no event"
        [result] = client.drain_completions()
        assert result[0] == number
        return result[1:]

    memory = bytearray(b"0123456789" * 1000)
    views = [memoryview(memory)[at : at + 3001] for at in (1, 3002)]  # not aligned
    assert ended(client.submit_batch_set(["a@1", "b/../2"], views)) == (True, "", [True] * 2)
    target = bytearray(9003)
    parts = [memoryview(target)[at : at + 3001] for at in (0, 3001, 6002)]
    got = ended(client.submit_batch_get(["a@1", "nothing", "b/../2"], parts))
    assert got == (True, "", [True, False, True])
    assert parts[0] == views[0] and parts[2] == views[1]
    assert ended(client.submit_batch_exists(["a@1", "c"]))[2] == [True, False]
    assert ended(client.submit_batch_delete(["a@1"]))[2] == [True]
    assert ended(client.submit_batch_exists(["a@1"]))[2] == [False]
    client.close()
