"""The files of `examples/`: run where their programs are installed, otherwise parsed.

`examples/embed.rs` is run by `cargo test`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
if not EXAMPLES.exists():
    pytest.skip("no examples", allow_module_level=True)
PYTHON = [sys.executable]
TWO_RANKS = [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def run(command: Sequence[object], folder: Path, **env: str) -> str:
    """What a program prints that ends with 0."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | env,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_each_is_tested() -> None:
    tested = Path(__file__).read_text()
    missing = [path.name for path in EXAMPLES.iterdir() if path.name not in tested]
    assert missing == []


@pytest.mark.parametrize(
    ("command", "needed", "printed"),
    [
        ([*PYTHON, "generate.py"], ["torch", "transformers"], r"^\[1, 2, 3(, \d+){8}\]$"),
        ([*PYTHON, "data_loader.py"], ["torch"], r"^epoch 1: loss \d"),
        ([*PYTHON, "layers.py"], ["torch"], r"^8 layers, .*: \(8, 256\)$"),
        (
            [*TWO_RANKS, "checkpoint.py", "saved"],
            ["torch"],
            r"^rank [01]: columns \(64, 32\), step 1000$",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_program_runs(
    command: list[str], needed: list[str], printed: str, tmp_path: Path
) -> None:
    for module in needed:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no {module}")
    words = [EXAMPLES / word if word.endswith(".py") else word for word in command]
    assert re.search(printed, run(words, tmp_path, OMP_NUM_THREADS="1"), re.MULTILINE)


def served(script: str, program: str, folder: Path) -> list[str]:
    """The words that a script passes to a server's program."""
    fake = folder / program
    fake.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    fake.chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    words = run([EXAMPLES / script, "MODEL", "3f2a9c1", "/nvme/kv"], folder, PATH=path)
    return words.rstrip("\0").split("\0")


def documented(option: str) -> dict[str, Any]:
    """The configuration that `docs/kv-cache.md` gives for an option."""
    page = (ROOT / "docs/kv-cache.md").read_text()
    found = re.search(rf"{option} '(.*?)'\n", page, re.DOTALL)
    assert found, option
    config: dict[str, Any] = json.loads(found[1])
    return config


def test_vllm_gets_the_documented_options(tmp_path: Path) -> None:  # vllm.sh
    words = served("vllm.sh", "vllm", tmp_path)
    assert words[:4] == ["serve", "MODEL", "--load-format", "forebay"]
    assert words[4] == "--kv-transfer-config" and len(words) == 6
    assert json.loads(words[5]) == documented("--kv-transfer-config")


def test_vllm_knows_the_options(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="no vLLM")
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    parsed = parser.parse_args(served("vllm.sh", "vllm", tmp_path)[2:])
    assert parsed.load_format == "forebay" and parsed.kv_transfer_config.kv_role == "kv_both"


def test_sglang_gets_the_documented_options(tmp_path: Path) -> None:  # sglang.sh
    words = served("sglang.sh", "python", tmp_path)
    options = dict(zip(words[2::2], words[3::2], strict=False))
    assert words[:4] == ["-m", "sglang.launch_server", "--model-path", "MODEL"]
    assert json.loads(options["--model-loader-extra-config"]) == {"forebay": True}
    config = json.loads(words[words.index("--hicache-storage-backend-extra-config") + 1])
    assert config == documented("--hicache-storage-backend-extra-config")
    page = (ROOT / "docs/kv-cache.md").read_text()
    own = ("--model-path", "--model-loader-extra-config")
    assert all(word in page for word in words if word.startswith("--") and word not in own)


def test_the_image_copies_what_the_build_reads() -> None:
    lines = (EXAMPLES / "Dockerfile").read_text().splitlines()
    steps = [line.split() for line in lines if line and not line.startswith("#")]
    assert {step[0] for step in steps} <= {"ARG", "FROM", "RUN", "WORKDIR", "COPY"}
    copies = [step[1:-1] for step in steps if step[0] == "COPY" and "--from" not in step[1]]
    copied = {path for paths in copies for path in paths}
    assert all((ROOT / path).exists() for path in copied)
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    assert {member.split("/")[0] for member in workspace["members"]} <= copied
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    read = [*project["project"]["license-files"], project["tool"]["maturin"]["python-source"]]
    assert {path.split("/")[0] for path in read} <= copied


def test_the_job_measures_two_nodes_together(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml", reason="no PyYAML")
    service, job = yaml.safe_load_all((EXAMPLES / "measure-nodes.yaml").read_text())
    spec = job["spec"]
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    env = {entry["name"]: entry.get("value", "the job") for entry in container["env"]}
    assert spec["completions"] == spec["parallelism"] == int(env["WORLD_SIZE"]) == 2
    # The name of the pod with index 0 in the service's domain.
    assert env["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert pod["subdomain"] == service["metadata"]["name"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes

    program = shutil.which("forebay", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program, "the package installs it"
    small = ["--gpu", "none", "--size", "4M", "--time", "100ms", "--repeats", "1"]
    command = [program, *container["command"][1:-1], str(tmp_path), *small]
    env = {**os.environ, **env, "MASTER_ADDR": "localhost"}
    env["MASTER_PORT"] = str(20000 + os.getpid() % 10000)

    def start(index: int) -> subprocess.Popen[str]:
        own = env | {"JOB_COMPLETION_INDEX": str(index)}
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=own)

    pods = [start(index) for index in range(2)]
    printed = [process.communicate(timeout=120)[0] for process in pods]
    assert [process.returncode for process in pods] == [0, 0], printed
    assert "2 ranks" in printed[0], printed
