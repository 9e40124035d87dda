"""The examples of the documentation, as they are pasted."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import program
from forebay.blocks import COUNTERS

ROOT = Path(__file__).parents[2]
NAMES = ["docs/models.md", "docs/python.md", "docs/layers.md", "docs/kvikio.md"]
NAMES += ["docs/kv-cache.md", "docs/serve.md", "README.md"]
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
"""What `torchrun` would say to the only process of a group."""
PAGES = [ROOT / name for name in NAMES]


SET_UP = "# A small model to try the examples with."


MODEL = """
import transformers
sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 64}
layers = {"num_hidden_layers": 1, "num_attention_heads": 2}
config = transformers.LlamaConfig(**sizes, **layers)
transformers.LlamaForCausalLM(config).save_pretrained("model")
"""
"""Makes the model that an example with transformers names."""


def examples() -> list[tuple[str, str]]:
    """Each example, after the block of its page that makes the model. README names the user's."""
    found = []
    usual = ""
    for page in (page for page in PAGES if page.exists()):
        blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        usual = next((block for block in blocks if SET_UP in block), usual)
        blocks = [MODEL + block if "transformers" in block else block for block in blocks]
        numbered = enumerate(blocks, 1)
        found += [(f"{page.name} {number}", f"{usual}\n{block}") for number, block in numbered]
    return found


def test_the_first_page_is_short() -> None:
    page = ROOT / "README.md"
    assert not page.exists() or len(page.read_text().splitlines()) <= 100


def test_examples_pass_a_type_checker(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="no mypy")
    flags = ["--strict", "--follow-imports=silent", "--disable-error-code=import-not-found"]
    paths = []
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    for page in pages:
        text = page.read_text() if page.exists() else ""
        for block in re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            if "torch" in block and importlib.util.find_spec("torch") is None:
                continue
            paths.append(tmp_path / f"block_{len(paths)}.py")
            paths[-1].write_text(f"# {page.name}\n{block}")
    if not paths:
        pytest.skip("no pages")
    # A checker has to see mistakes, too.
    wrong = tmp_path / "wrong.py"
    wrong.write_text('import forebay\nforebay.opne("x")\nforebay.read_many(ofsets=[1])\n')
    env = os.environ | {"MYPY_CACHE_DIR": str(tmp_path / "cache")}
    run = [sys.executable, "-m", "mypy", *flags, *map(str, [*paths, wrong])]
    done = subprocess.run(run, capture_output=True, text=True, env=env, check=False, cwd=tmp_path)
    errors = [line for line in done.stdout.splitlines() if " error: " in line]
    assert len(errors) == 2 and all(line.startswith("wrong.py") for line in errors), done.stdout


@pytest.mark.parametrize(("name", "code"), examples(), ids=[name for name, _ in examples()])
def test_an_example_runs(name: str, code: str, tmp_path: Path) -> None:
    done = program(code, ends=None, cwd=tmp_path, env=os.environ | ALONE)
    if "ModuleNotFoundError: " in done.stderr or "NoDevice: " in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr


def test_the_dashboard_shows_the_counters() -> None:
    page = ROOT / "docs/kv-cache-dashboard.json"
    if not page.exists():
        pytest.skip("no pages")
    asked = [one["expr"] for panel in json.loads(page.read_text())["panels"] for one in panel["targets"]]
    shown = re.findall(r"\(vllm:kv_offload_forebay\|forebay_kv\)_(\w+)_total", " ".join(asked))
    assert sorted(shown) == sorted(COUNTERS)
    for name in shown:
        [expr] = (expr for expr in asked if f"forebay_kv)_{name}_total" in expr)
        assert expr.startswith(f"sum by ({', '.join(COUNTERS[name][1:])}) ")
