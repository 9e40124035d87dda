"""What the tests of `forebay.torch` share."""

from __future__ import annotations

import os
from typing import Any

import pytest


def torch_or_skip() -> Any:
    """Torch, or none of the file's tests."""
    return pytest.importorskip("torch", reason="no torch")


def device_or_skip(name: str) -> str:
    """A device that torch can use, or no test; with `FOREBAY_REQUIRE_GPU=1` a failure."""
    if name == "cuda" and not torch_or_skip().cuda.is_available():
        if os.environ.get("FOREBAY_REQUIRE_GPU") == "1":
            pytest.fail("no GPU that torch can use, and FOREBAY_REQUIRE_GPU=1 is set")
        pytest.skip("no GPU that torch can use")
    return name
