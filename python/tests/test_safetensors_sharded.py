"""Models saved in several files: at every moment the old model whole, or the new one."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import program
from forebay.safetensors import FormatError, iterate, load_file, save_sharded
from forebay.safetensors import _plan
from forebay.safetensors import _sharded as module

numpy = pytest.importorskip("numpy")

HOST: dict[str, Any] = {"framework": "numpy"}
INDEX = "model.safetensors.index.json"


def model(value: int, count: int = 5) -> dict[str, Any]:
    return {f"w{n}": numpy.full(1000, value, "int32") for n in range(count)}


def value_of(folder: Path) -> int:
    """The value of all elements of a whole model."""
    found = load_file(folder, **HOST)
    [value] = {int(number) for array in found.values() for number in numpy.unique(array)}
    assert sorted(found) == [f"w{n}" for n in range(len(found))]
    return value


def names(count: int, stem: str = "model") -> list[str]:
    return [f"{stem}-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]


def test_a_model_is_divided_as_transformers_does(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "model"
    nbytes = forebay.save_sharded(model(1), folder, max_shard_size="8KB", metadata={"format": "np"})
    assert sorted(os.listdir(folder)) == sorted([INDEX, *names(3)])
    assert nbytes == sum((folder / name).stat().st_size for name in names(3))
    index = json.loads((folder / INDEX).read_text())
    assert index["metadata"] == {"total_size": 20_000}
    assert [index["weight_map"][f"w{n}"] for n in range(5)] == [names(3)[n // 2] for n in range(5)]
    report: dict[str, Any] = {}
    assert list(load_file(folder, report=report, **HOST)) == [f"w{n}" for n in range(5)]
    assert report["metadata"] == {"format": "np"}
    huge = {"a": numpy.zeros(5000, "uint8"), "b": numpy.zeros(1, "uint8")}
    forebay.save_sharded(huge, folder, max_shard_size=1000)
    assert len(list(folder.glob("*.safetensors"))) == 2


def test_tensors_go_into_the_files_that_transformers_chooses(tmp_path: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="no huggingface_hub")
    draw = random.Random(5)
    tensors = {f"w{n}": numpy.zeros(draw.randrange(1, 9000), "uint8") for n in range(60)}
    save_sharded(tensors, tmp_path, max_shard_size="10KB")
    planned = hub.split_state_dict_into_shards_factory(
        tensors,
        get_storage_size=lambda array: array.nbytes,
        filename_pattern="model{suffix}.safetensors",
        max_shard_size="10KB",
    )
    index = json.loads((tmp_path / INDEX).read_text())
    assert index["weight_map"] == planned.tensor_to_filename
    assert index["metadata"] == planned.metadata


def test_names_of_diffusers_and_of_variants(tmp_path: Path) -> None:
    name = "diffusion_pytorch_model.safetensors"
    save_sharded(model(1), tmp_path, max_shard_size="8KB", name=name)
    save_sharded(model(2), tmp_path, max_shard_size="8KB", name=name, variant="fp16")
    stem = name.removesuffix(".safetensors")
    expected = [f"{name}.index.json", f"{name}.index.fp16.json"]
    expected += names(3, stem) + names(3, f"{stem}.fp16")
    assert sorted(os.listdir(tmp_path)) == sorted(expected)
    assert value_of(tmp_path) == 1 and value_of(tmp_path / f"{name}.index.fp16.json") == 2


@pytest.mark.parametrize("old", ["4KB", "8KB", "1MB"])
@pytest.mark.parametrize("new", ["4KB", "8KB", "1MB"])
def test_a_model_replaces_another_one(tmp_path: Path, old: str, new: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_sharded(model(1), tmp_path, max_shard_size=old)
    before = set(os.listdir(tmp_path)) - {"config.json", INDEX}
    save_sharded(model(2), tmp_path, max_shard_size=new)
    assert value_of(tmp_path) == 2
    count = {"4KB": 5, "8KB": 3, "1MB": 1}[new]
    found = files_of(tmp_path)
    assert len(found) == count and set(os.listdir(tmp_path)) - found == {"config.json"} | (
        {INDEX} if count > 1 else set()
    )
    assert not before & found or found == {"model.safetensors"}, "no name is used again"


def files_of(folder: Path) -> set[str]:
    """The files of the model that a folder has."""
    if not (folder / INDEX).exists():
        return {"model.safetensors"}
    return set(json.loads((folder / INDEX).read_text())["weight_map"].values())


def test_invalid_models_are_refused_before_a_file_changes(tmp_path: Path) -> None:
    save_sharded(model(1), tmp_path, max_shard_size="8KB")
    shared = numpy.zeros(4000, "int32")
    for wrong in ({"a": 1}, {"a": shared[:3000], "b": shared[1000:]}, 5):
        with pytest.raises((TypeError, ValueError)):
            save_sharded(wrong, tmp_path, max_shard_size="8KB")  # type: ignore[arg-type]
    for bad in ({"max_shard_size": "big"}, {"name": "../a.safetensors"}, {"variant": "a/b"}):
        with pytest.raises(ValueError, match="cannot be|invalid size"):
            save_sharded(model(2), tmp_path, **bad)  # type: ignore[arg-type]
    assert value_of(tmp_path) == 1 and len(os.listdir(tmp_path)) == 4


def saver(folder: Path, seed: int) -> subprocess.Popen[str]:
    """A process that saves whole models, one after another, until it is killed."""
    code = f"""
import random, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_safetensors_sharded import model, save_sharded
draw = random.Random(int(sys.argv[2]))
print("begins", flush=True)
while True:
    size = draw.choice(["4KB", "4KB", "8KB", "1MB"])
    save_sharded(model(draw.randrange(1 << 30)), sys.argv[1], max_shard_size=size, sync=False)
"""
    command = [sys.executable, "-c", code, str(folder), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_loads_beside_savers_that_are_killed_find_whole_models(tmp_path: Path) -> None:
    seed = int(os.environ.get("FOREBAY_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    rng = random.Random(seed)
    save_sharded(model(1), tmp_path, max_shard_size="8KB")
    for _ in range(int(os.environ.get("FOREBAY_STRESS", "2"))):
        savers = [saver(tmp_path, rng.randrange(1 << 32)) for _ in range(3)]
        try:
            assert all(one.stdout is not None and one.stdout.readline() for one in savers)
            for one in savers:
                for _ in range(20):
                    assert value_of(tmp_path)
                    found = {int(array[0]) for _, array in iterate(tmp_path, **HOST)}
                    assert len(found) == 1
                one.kill()
        finally:
            for one in savers:
                one.kill()
                one.communicate()
        assert value_of(tmp_path)
    save_sharded(model(7), tmp_path, max_shard_size="8KB")
    assert value_of(tmp_path) == 7
    assert set(os.listdir(tmp_path)) == {INDEX, *files_of(tmp_path)}, "files of killed saves stay"


def test_no_save_begins_while_another_removes_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink = os.unlink
    late = threading.Thread(target=save_sharded, args=(model(3), tmp_path))

    def slow(path: str) -> None:
        if late.ident is None:
            late.start()
            late.join(0.3)  # it would replace the file that is removed here
        unlink(path)

    save_sharded(model(1), tmp_path)
    monkeypatch.setattr(module.os, "unlink", slow)
    save_sharded(model(2), tmp_path, max_shard_size="8KB")
    late.join()
    assert value_of(tmp_path) == 3 and os.listdir(tmp_path) == ["model.safetensors"]


@pytest.mark.parametrize("old", ["8KB", "1MB"])
@pytest.mark.parametrize("new", ["8KB", "1MB"])
def test_a_save_that_ends_while_another_runs_removes_none_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    def slow(*given: Any, **options: Any) -> int:
        monkeypatch.undo()
        nbytes = save_file(*given, **options)
        save_sharded(model(3), tmp_path, max_shard_size="4KB")
        assert value_of(tmp_path) == 3
        return nbytes

    save_file = module._save.save_file
    save_sharded(model(1), tmp_path, max_shard_size=old)
    monkeypatch.setattr(module._save, "save_file", slow)
    save_sharded(model(2), tmp_path, max_shard_size=new)
    assert value_of(tmp_path) == 2
    assert set(os.listdir(tmp_path)) - {INDEX} == files_of(tmp_path)


@pytest.mark.parametrize("old", ["8KB", "1MB"])
@pytest.mark.parametrize("new", ["8KB", "1MB"])
@pytest.mark.parametrize("load", [load_file, lambda *args, **more: dict(iterate(*args, **more))])
def test_a_load_during_a_save_is_of_one_model(
    tmp_path: Path, old: str, new: str, load: Any
) -> None:
    save_sharded(model(1), tmp_path, max_shard_size=old)
    seen: list[str] = []

    def is_wanted(name: str) -> bool:
        if name == "w2" and not seen:  # the files before have been opened
            seen.append(name)
            save_sharded(model(2), tmp_path, max_shard_size=new)
        return True

    found = load(tmp_path, names=is_wanted, **HOST)
    assert seen and len(found) == 5
    assert {int(array[0]) for array in found.values()} == {2 if old == "8KB" else 1}


def test_a_model_that_is_replaced_again_and_again_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_sharded(model(1), tmp_path, max_shard_size="8KB")
    monkeypatch.setattr(_plan.Stamp, "is_in_place", lambda _: False)
    with pytest.raises(forebay.FileChanged, match="saves replaced it 20 times in a row"):
        load_file(tmp_path, **HOST)


def test_files_of_an_unfinished_save_do_not_count(tmp_path: Path) -> None:
    save_sharded(model(1), tmp_path)
    mark = f"model-{'0' * 16}-00001-of-00003.safetensors"
    (tmp_path / mark).write_bytes((tmp_path / "model.safetensors").read_bytes())
    (tmp_path / "model.safetensors").rename(tmp_path / "other.safetensors")
    assert value_of(tmp_path) == 1


@pytest.mark.parametrize("sizes", [["8KB"], ["4KB", "8KB", "1MB"]])
def test_a_save_that_is_killed_leaves_one_of_both_models(tmp_path: Path, sizes: list[str]) -> None:
    seed = int(os.environ.get("FOREBAY_SEED", random.randrange(1 << 32)))
    print(f"seed {seed}")
    rng = random.Random(seed)
    code = f"""
import sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from test_safetensors_sharded import model, save_sharded
number = int(sys.argv[2])
while True:
    number += 1
    size = {sizes!r}[number % {len(sizes)}]
    save_sharded(model(number), sys.argv[1], max_shard_size=size)
    print(number, flush=True)
"""
    number = 0
    for _ in range(int(os.environ.get("FOREBAY_STRESS", "5"))):
        run = [sys.executable, "-c", code, str(tmp_path), str(number)]
        process = subprocess.Popen(run, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None and process.stdout.readline() == f"{number + 1}\n"
        time.sleep(rng.uniform(0.0, 0.05))
        process.kill()
        reported = [number + 1, *map(int, process.stdout.read().split())]
        process.wait()
        number = value_of(tmp_path)
        assert number in (reported[-1], reported[-1] + 1)
        assert [name for name, _ in iterate(tmp_path, **HOST)] == [f"w{n}" for n in range(5)]
    save_sharded(model(7), tmp_path, max_shard_size="8KB")
    assert set(os.listdir(tmp_path)) == {INDEX, *files_of(tmp_path)} and len(files_of(tmp_path)) == 3


def test_a_save_that_is_interrupted_leaves_one_of_both_models(tmp_path: Path) -> None:
    seed = int(os.environ.get("FOREBAY_SEED", random.randrange(1 << 32)))
    rounds = min(60 * int(os.environ.get("FOREBAY_STRESS", "1")), 3000)
    code = f"""
import os, random, signal, sys, time
sys.path.insert(0, {os.path.dirname(__file__)!r})
from pathlib import Path
from test_safetensors_sharded import INDEX, files_of, model, save_sharded, value_of
folder, rng, rounds = sys.argv[1], random.Random({seed}), {rounds}

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
save_sharded(model(0), folder, max_shard_size="8KB")
begun = time.monotonic()
save_sharded(model(1), folder, max_shard_size="8KB")
took = time.monotonic() - begun
before, held, interrupted = len(os.listdir("/proc/self/fd")), 1, 0
for number in range(2, rounds + 2):
    try:
        signal.setitimer(signal.ITIMER_REAL, max(1e-6, rng.random() * 1.2 * took))
        save_sharded(model(number), folder, max_shard_size="8KB")
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        interrupted += 1
    found = value_of(folder)
    assert found in (held, number), (found, held, number)
    held = found
    assert not [name for name in os.listdir(folder) if name.startswith(".")]
until = time.monotonic() + 5  # the engine closes files of interrupted saves on another thread
while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < until:
    time.sleep(0.001)
assert len(os.listdir("/proc/self/fd")) == before, os.listdir("/proc/self/fd")
assert interrupted
save_sharded(model(7), folder, max_shard_size="8KB")
assert set(os.listdir(folder)) == {{INDEX, *files_of(Path(folder))}}
print(interrupted)
"""
    print(program(code, tmp_path, timeout=1200).stdout)


def test_a_missing_file_of_a_model_is_named(tmp_path: Path) -> None:
    save_sharded(model(1), tmp_path, max_shard_size="8KB")
    lost = names(3)[1]
    (tmp_path / lost).rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match="the index .* names it"):
        load_file(tmp_path, **HOST)
    (tmp_path / INDEX).rename(tmp_path / "index")
    with pytest.raises(FormatError, match=f"its file `{lost}` is missing"):
        load_file(tmp_path, **HOST)
    weights = {"w0": names(3)[0], "w4": names(3)[2]}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(FormatError, match=f"it names no tensor of the file `{lost}` \\("):
        load_file(tmp_path, **HOST)
