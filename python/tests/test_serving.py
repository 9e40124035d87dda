"""The loaders for servers: what they cost where they are not used, and their options."""

from __future__ import annotations

import importlib.metadata
import json as module
import subprocess
import sys
from pathlib import Path

import forebay
import pytest
from conftest import program
from forebay._serving import checked, exchanged, rank


def test_their_entry_points_import_no_server() -> None:
    code = """
import sys
import forebay.vllm, forebay.sglang
assert callable(forebay.vllm.register) and callable(forebay.sglang.register)
print(sorted({"vllm", "sglang", "torch", "numpy", "forebay.safetensors"} & {*sys.modules}))
"""
    assert program(code).stdout == "[]\n"


def test_servers_find_them() -> None:
    found = importlib.metadata.distributions(name="forebay")
    if Path(forebay.__file__).parent not in [one.locate_file("forebay") for one in found]:
        pytest.skip("forebay is not installed here, but found on the path")
    for group in ("vllm.general_plugins", "sglang.srt.plugins"):
        [entry] = importlib.metadata.entry_points(group=group, name="forebay")
        assert entry.load().__name__ == "register"


VLLM = {
    "vllm/__init__.py": "",
    "vllm/model_executor/__init__.py": "",
    "vllm/model_executor/model_loader/__init__.py": "register_model_loader = 5",
}
SGLANG = {
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/plugins/__init__.py": "",
    "sglang/srt/plugins/hook_registry.py": """
class HookType:
    BEFORE = AROUND = 1
class HookRegistry:
    register = staticmethod(lambda *_: print("registered"))
""",
    "sglang/srt/model_loader/__init__.py": "",
    "sglang/srt/model_loader/loader.py": """
_validate_default_loader_extra_config = print
safetensors_weights_iterator = buffered_multi_thread_safetensors_weights_iterator = print
class DefaultModelLoader:
    _get_weights_iterator = print
""",
}


def _registered(folder: Path, server: str, files: dict[str, str]) -> tuple[str, str]:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    code = f"import sys; sys.path.insert(0, sys.argv[1])\nimport forebay.{server} as it\nit.register()"
    done = program(code, folder, flags=["-W", "always"])
    return done.stdout, done.stderr


@pytest.mark.parametrize(
    ("server", "name", "text"),
    [
        ("vllm", "vllm/model_executor/model_loader/__init__.py", ""),
        ("vllm", "vllm/__init__.py", "raise RuntimeError('no platform')"),
        ("sglang", "sglang/srt/plugins/hook_registry.py", "class HookRegistry: pass"),
        ("sglang", "sglang/srt/model_loader/loader.py", "class DefaultModelLoader: pass"),
        ("sglang", "sglang/srt/model_loader/loader.py", "import a_module_that_has_moved"),
    ],
)
def test_a_server_without_a_needed_name_starts(
    tmp_path: Path, server: str, name: str, text: str
) -> None:
    files = {"vllm": VLLM, "sglang": SGLANG}[server]
    output, warned = _registered(tmp_path, server, {**files, name: text})
    assert output == "" and "Traceback" not in warned
    assert "forebay is not available in this" in warned and "tested with" in warned


def test_a_server_with_all_names_gets_its_hooks(tmp_path: Path) -> None:
    assert _registered(tmp_path, "sglang", SGLANG) == ("registered\n" * 2, "")


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
    assert rank() is None
    code = """
import sys
from torch import distributed
from forebay._serving import rank, together
number, size = map(int, sys.argv[1:])
place = f"file://{sys.argv[0]}/ranks-{size}"
distributed.init_process_group("gloo", init_method=place, rank=number, world_size=size)
assert together(["a"], "cpu") == {}
print(rank(), *together(["a"], "cuda"))
"""
    code = code.replace("{sys.argv[0]}", str(tmp_path))
    each = [
        subprocess.Popen([sys.executable, "-c", code, *words.split()], stdout=subprocess.PIPE)
        for words in ("0 1", "0 2", "1 2")
    ]
    printed = [process.communicate(timeout=300)[0].decode().strip() for process in each]
    assert printed == ["None", "0 group", "1 group"]
