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
    given = {"root": str(root), "capacity": "256MiB", "keep_free": 0, "namespace": "main bf16", **options}
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
