"""The examples of `docs/python-torch.md`, as they are pasted."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import program
from tensors import torch_or_skip

torch_or_skip()

PAGE = Path(__file__).parents[2] / "docs" / "python-torch.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_each_name_has_an_example() -> None:
    import forebay.torch

    for name in set(forebay.torch.__all__) - {"Layer"}:  # which streams make
        assert any(re.search(rf"\b{name}\(", example) for example in EXAMPLES), name


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int, tmp_path: Path) -> None:
    program(EXAMPLES[number], cwd=tmp_path)
