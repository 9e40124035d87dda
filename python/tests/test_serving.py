"""The loaders for servers: what they cost where they are not used, and their options."""

from __future__ import annotations

import importlib.metadata
import json as module
import subprocess
import sys
from pathlib import Path

import forebay
import pytest
from forebay._serving import checked, exchanged, ranks


def test_their_entry_points_import_no_server() -> None:
    code = """
import sys
import forebay.vllm, forebay.sglang
assert callable(forebay.vllm.register) and callable(forebay.sglang.register)
print(sorted({"vllm", "sglang", "torch", "numpy", "forebay.safetensors"} & {*sys.modules}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_servers_find_them() -> None:
    found = importlib.metadata.distributions(name="forebay")
    if Path(forebay.__file__).parent not in [one.locate_file("forebay") for one in found]:
        pytest.skip("forebay is not installed here, but found on the path")
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        [entry] = importlib.metadata.entry_points(group=group, name="forebay")
        assert entry.load().__name__ == "register"


def test_options_are_checked() -> None:
    options = {"window": "64MiB", "copy": True, "device": "cpu"}
    assert checked(options) == options
    with pytest.raises(ValueError, match="unknown option `win`; use `copy`, `device`, `window`"):
        checked({"win": 5})
    with pytest.raises(ValueError, match="`copy` cannot be `yes`"):
        checked({"copy": "yes"})
    with pytest.raises(ValueError, match="many"):
        checked({"window": "many"})


def test_a_function_is_exchanged_for_a_while() -> None:
    before = module.dumps, module.loads
    with pytest.raises(KeyError), exchanged(module, print, "dumps", "loads"):
        assert module.dumps is module.loads is print
        raise KeyError
    assert (module.dumps, module.loads) == before
    with pytest.raises(AttributeError), exchanged(module, print, "dumps", "missing"):
        pass
    assert module.dumps is before[0]


def test_each_process_knows_its_rank(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="no torch")
    assert ranks() == {}
    code = """
import sys
from torch import distributed
from forebay._serving import ranks
rank, size = map(int, sys.argv[1:])
place = f"file://{sys.argv[0]}/ranks-{size}"
distributed.init_process_group("gloo", init_method=place, rank=rank, world_size=size)
print(ranks())
"""
    code = code.replace("{sys.argv[0]}", str(tmp_path))
    each = [
        subprocess.Popen([sys.executable, "-c", code, *words.split()], stdout=subprocess.PIPE)
        for words in ("0 1", "0 2", "1 2")
    ]
    printed = [process.communicate(timeout=300)[0].decode().strip() for process in each]
    assert printed == [str({}), *(str({"rank": rank, "world_size": 2}) for rank in range(2))]
