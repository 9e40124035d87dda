"""The examples of the documentation, as they are pasted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import content

ROOT = Path(__file__).parents[2]
NAMES = ["docs/python.md", "docs/layers.md", "docs/models.md", "README.md"]
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
"""What `torchrun` would say to the only process of a group."""
PAGES = [ROOT / name for name in NAMES]


def examples() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        if page.exists():
            blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
            blocks = [block for block in blocks if "transformers" not in block]  # needs a model
            found += [(f"{page.name} {number}", block) for number, block in enumerate(blocks, 1)]
    return found


def model(nbytes: int) -> bytes:
    """A safetensors file of so many bytes."""
    embedding, room = 512 * 64 * 4, 1000
    rest = nbytes - 8 - room - embedding
    tensors = {
        "embedding": {"dtype": "F32", "shape": [512, 64], "data_offsets": [0, embedding]},
        "rest": {"dtype": "U8", "shape": [rest], "data_offsets": [embedding, embedding + rest]},
    }
    header = json.dumps(tensors).encode().ljust(room)
    return room.to_bytes(8, "little") + header + content(embedding + rest)


@pytest.mark.parametrize(("name", "code"), examples(), ids=[name for name, _ in examples()])
def test_an_example_runs(name: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(model(4 << 20))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | ALONE,
    )
    if "ModuleNotFoundError: " in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
