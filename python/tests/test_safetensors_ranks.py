"""Models that several processes load at once."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import Any

import pytest
from forebay.safetensors import iterate, load_file, save_file
from test_safetensors import model, same

numpy = pytest.importorskip("numpy")

HOST: dict[str, Any] = {"framework": "numpy"}

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch.distributed", "forebay.safetensors"])


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A model in two files, one of them small."""
    arrays, large = model(1, "a."), {"b": numpy.arange(3_000_000, dtype="uint32")}
    save_file(arrays, tmp_path / "1.safetensors")
    save_file(large, tmp_path / "2.safetensors")
    return tmp_path, arrays | large


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_each_begins_at_another_place_and_has_all(files: Any, size: int) -> None:
    folder, arrays = files
    for rank in range(size):
        ranks = {"rank": rank, "world_size": size}
        report: dict[str, Any] = {}
        loaded = load_file(folder, report=report, **HOST, **ranks)
        assert same(loaded, arrays)
        reasons = {route["reason"] for route in report["routes"]}
        assert size == 1 or "required" in reasons or "resident in the page cache" in reasons
        assert same(dict(iterate(folder, window="4MiB", **HOST, **ranks)), arrays)
        half = load_file(folder, names="b", shard=(0, rank % 2, 2), **HOST, **ranks)
        begin = 1_500_000 * (rank % 2)
        assert same(half, {"b": arrays["b"][begin : begin + 1_500_000]})


def test_ranks_that_cannot_be(files: Any) -> None:
    folder, _ = files
    for rank, size in [(2, 2), (-1, 2), (0, 0), (None, 2), (0, None), (0.5, 2), ("0", 2)]:
        with pytest.raises(ValueError, match="`rank` and `world_size` cannot be"):
            load_file(folder, rank=rank, world_size=size, **HOST)
    for other in ({"rank": 0}, {"world_size": 2}, {"shard": (0, 0, 2)}):
        with pytest.raises(ValueError, match="cannot be given together"):
            load_file(folder, group=object(), **other, **HOST)


def moved() -> int:
    """Bytes that this process had read from drives."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def cold(rank: int, path: Path, barrier: Any, found: Any) -> None:
    barrier.wait()
    before = moved()
    loaded = load_file(path, rank=rank, world_size=2, **HOST)
    found.put((moved() - before, int(loaded["x"][-1])))


def test_the_drive_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    array = numpy.arange(64 << 20, dtype="uint32")
    save_file({"x": array}, path)
    with open(path) as raw:
        os.posix_fadvise(raw.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    barrier, found = CONTEXT.Barrier(2), CONTEXT.Queue()
    each = [
        CONTEXT.Process(target=cold, args=(rank, path, barrier, found)) for rank in range(2)
    ]
    for process in each:
        process.start()
    (first, last), (second, other) = found.get(timeout=120), found.get(timeout=120)
    for process in each:
        process.join()
    assert last == other == array[-1]
    if first + second == 0:
        pytest.skip("this folder is in memory")
    assert 0.95 * array.nbytes <= first + second <= 1.05 * array.nbytes


def member(rank: int, size: int, port: Path, act: Callable[..., Any], found: Any, path: Any) -> None:
    import torch.distributed as dist

    store = dist.FileStore(str(port), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    try:
        found.put((rank, act(rank, path)))
    except Exception as error:
        found.put((rank, f"{type(error).__name__}: {error}"))
    dist.barrier()
    dist.destroy_process_group()


def in_group(folder: Path, size: int, act: Callable[..., Any], path: Any) -> list[Any]:
    """What `act` returned or raised in each process of a group."""
    pytest.importorskip("torch")
    found = CONTEXT.Queue()
    arguments = (size, folder / "store", act, found, path)
    each = [CONTEXT.Process(target=member, args=(rank, *arguments)) for rank in range(size)]
    for process in each:
        process.start()
    results = dict(found.get(timeout=120) for _ in each)
    for process in each:
        process.join()
    return [results[rank] for rank in range(size)]


def world() -> Any:
    import torch.distributed as dist

    return dist.group.WORLD


def loaded(rank: int, path: Path) -> tuple[Any, Any, int, list[tuple[int, int]]]:
    from forebay.safetensors import _group

    _group.CHUNK = 1 << 20  # several windows
    seen: list[tuple[int, int]] = []
    report: dict[str, Any] = {}
    reported: Any = {"progress": lambda *one: seen.append(one), "report": report}
    whole = load_file(path, group=world(), **reported, **HOST)
    each = {
        name: tensor.numpy()
        for name, tensor in iterate(path, device="cpu", window="4MiB", group=world(), copy=True)
    }
    return whole, each, report["bytes"], seen


def loaded_apart(rank: int, path: Path) -> Any:
    """One rank cannot map the memory of the others."""
    from forebay.safetensors._shared import HostMemory

    if rank == 1:
        HostMemory.map = broken  # type: ignore[method-assign]
    return loaded(rank, path)


def loaded_over_hosts(rank: int, path: Path) -> Any:
    from forebay.safetensors import _group

    _group.host = lambda: f"host {rank}"
    return loaded(rank, path)


@pytest.mark.parametrize(
    ("act", "size"),
    [(loaded, 1), (loaded, 2), (loaded, 3), (loaded_apart, 3), (loaded_over_hosts, 2)],
)
def test_each_of_a_group_reads_a_part(files: Any, tmp_path: Path, act: Any, size: int) -> None:
    folder, arrays = files
    total = sum(array.nbytes for array in arrays.values())
    read = 0
    for whole, each, own, seen in in_group(tmp_path, size, act, folder):
        assert same(whole, arrays) and same(each, arrays)
        assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] >= total
        assert own <= total // size + (1 << 20)
        read += own
    assert read == total


def converted(rank: int, path: Path) -> Any:
    from forebay.safetensors import _load

    _load._CONVERTED = 4096
    return dict(load_file(path, dtype="float64", group=world(), **HOST))


def test_a_group_converts_tensors_as_they_arrive(files: Any, tmp_path: Path) -> None:
    folder, arrays = files
    expected = {
        name: array.astype("float64") if "float" in array.dtype.name else array
        for name, array in arrays.items()
    }
    for found in in_group(tmp_path, 2, converted, folder):
        assert same(found, expected) and list(found) == list(load_file(folder, **HOST))


def different(rank: int, path: Path) -> Any:
    return load_file(path, names=["b"] if rank == 1 else None, group=world(), **HOST)


def missing(rank: int, path: Path) -> Any:
    return load_file(path / "none" if rank == 1 else path, group=world(), **HOST)


def cut(rank: int, path: Path) -> Any:
    """The bytes of one rank end before they are read."""
    from forebay.safetensors._group import Group

    if rank == 1:
        start = Group.start

        def late(*arguments: Any) -> Any:
            os.truncate(path / "2.safetensors", 1_000_000)
            return start(*arguments)

        Group.start = late  # type: ignore[method-assign]
    return load_file(path, names="b", group=world(), **HOST)


def unstarted(rank: int, path: Path) -> Any:
    from forebay.safetensors._requests import Requests

    if rank == 1:
        Requests.start = broken  # type: ignore[method-assign]
    return load_file(path, names="b", group=world(), **HOST)


def unmade(rank: int, path: Path) -> Any:
    from forebay.safetensors._frameworks import Torch

    if rank == 1:
        Torch.memory = broken  # type: ignore[method-assign]
    return dict(iterate(path, device="cpu", group=world()))


def unmade_at_once(rank: int, path: Path) -> Any:
    from forebay.safetensors._frameworks import Torch

    if rank == 1:
        Torch.memory = broken  # type: ignore[method-assign]
    return load_file(path, device="cpu", group=world())


def unconverted(rank: int, path: Path) -> Any:
    import torch
    from forebay.safetensors import _load
    from forebay.safetensors._frameworks import Torch

    _load._CONVERTED = 1 << 10  # several calls
    if rank == 1:
        Torch.converted = broken  # type: ignore[method-assign]
    return load_file(path, device="cpu", group=world(), dtype=torch.float64)


def broken(*_: Any, **__: Any) -> Any:
    raise MemoryError("none is left")


def unchosen(rank: int, path: Path) -> Any:
    return dict(iterate(path, device="cpu", group=world(), window=["1GiB", "a lot"][rank]))


@pytest.mark.parametrize("act", [unstarted, unmade, unmade_at_once, unchosen, unconverted])
def test_no_rank_waits_for_a_failed_one(files: Any, tmp_path: Path, act: Any) -> None:
    ours, theirs = in_group(tmp_path, 2, act, files[0])
    assert "rank 1 of the group could not" in ours
    assert "none is left" in theirs or "a lot" in theirs


def replaced(rank: int, path: Path) -> Any:
    """Rank 1 saves another model when rank 0 has opened the files of the first one."""
    was_opened, was_saved = path.parent / "opened", path.parent / "saved"

    def wait(until: Path) -> None:
        while not until.exists():
            time.sleep(0.001)

    def is_wanted(_: str) -> bool:
        was_opened.touch()
        wait(was_saved)
        return True

    class Replaced(type(path)):  # type: ignore[misc]
        def __fspath__(self) -> str:
            wait(was_opened)
            if not was_saved.exists():
                save_file({"b": numpy.full(3_000_000, 2, "uint32")}, path)
                was_saved.touch()
            return str(path)

    if rank == 0:
        return load_file(path, group=world(), names=is_wanted, **HOST)
    return load_file(Replaced(path), group=world(), **HOST)


def test_a_group_loads_one_model_if_a_save_replaces_it(tmp_path: Path) -> None:
    save_file({"b": numpy.full(3_000_000, 1, "uint32")}, path := tmp_path / "model.safetensors")
    ours, theirs = in_group(tmp_path, 2, replaced, path)
    assert "FileChanged" in ours and "a save replaced it" in ours
    assert "rank 0 of the group could not start" in theirs


def test_all_of_a_group_fail_where_one_fails(files: Any, tmp_path: Path) -> None:
    folder, _ = files
    ours, theirs = in_group(tmp_path, 2, different, folder)
    assert "RequestError" in ours and "the ranks 0 and 1 of the group load different" in ours
    assert "RequestError" in theirs
    (tmp_path / "store").unlink(missing_ok=True)
    ours, theirs = in_group(tmp_path, 2, missing, folder)
    assert "rank 1 of the group could not start" in ours and "none" in theirs
    (tmp_path / "store").unlink(missing_ok=True)
    ours, theirs = in_group(tmp_path, 2, cut, folder)
    assert "EndOfFile" in theirs or "FileTruncated" in theirs
    assert "EndOfFile" in ours or "FileTruncated" in ours or "rank 1 of the group could" in ours


def served(rank: int, path: Path) -> Any:
    """As a server loads: the ranks that come in time, if they load the same tensors."""
    from forebay.safetensors import _group

    _group.PATIENCE = 2
    chosen: dict[str, Any] = {"window": "4MiB", **HOST}
    found = [dict(iterate(path, group=_group.OfHost(world(), "all"), **chosen))]
    names = "b" if rank == 1 else None
    found.append(dict(iterate(path, names, group=_group.OfHost(world(), "other"), **chosen)))
    if rank != 1:
        time.sleep(rank / 2)  # one of them decides before the time of the other is over
        found.append(dict(iterate(path, group=_group.OfHost(world(), "two"), **chosen)))
    return found


def test_ranks_of_a_server_share_what_they_load_together(files: Any, tmp_path: Path) -> None:
    folder, arrays = files
    first, second, third = in_group(tmp_path, 3, served, folder)
    assert all(same(found, arrays) for found in [*first, *third, second[0]])
    assert len(first) == len(third) == 3 and same(second[1], {"b": arrays["b"]})


def abandoned(rank: int, path: Path) -> Any:
    tensors = iterate(path, window="4MiB", group=world(), **HOST)
    if rank == 1:
        next(tensors)
        tensors.close()
        return "closed"
    return dict(tensors)


def test_a_rank_that_ends_early_is_named(files: Any, tmp_path: Path) -> None:
    ours, theirs = in_group(tmp_path, 2, abandoned, files[0])
    assert "rank 1 of the group ended its load early" in ours and theirs == "closed"


STAGES = {
    "_mesh.Listener.connect": 1,
    "_mesh.Mesh.exchange": 30,
    "_mesh.Mesh.close": 1,
    "safetensors._group._Place._met": 1,
    "safetensors._group.Group.start": 20,
    "safetensors._group.Group.finish": 20,
    "safetensors._group.Slots.copy": 20,
    "safetensors._group.Collective.copy": 20,
}
"""Functions in which a process is killed, and how often a load calls them, at least."""

LOST = re.compile(r"the ranks \[(0, )?1\b")
"""Ranks that ended with an error because rank 1 was lost may be lost too."""


def mortal(
    rank: int, size: int, port: Path, at: tuple[str, int], found: Any, path: Path, device: str
) -> None:
    """Rank 1 is killed in call `number` of a function, counted from 0. Then rank 0 loads alone."""
    import importlib

    import torch.distributed as dist

    from forebay import _mesh
    from forebay.safetensors import _group

    _group.CHUNK, _mesh.WAIT_MAX = 1 << 18, 4.0
    backend = backend_of(device, rank)
    store = dist.FileStore(str(port), size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    where, number = at
    if "Collective" in where:
        _group.host = lambda: f"host {rank}"
    module, owner, name = where.rsplit(".", 2)
    kind = getattr(importlib.import_module(f"forebay.{module}"), owner)
    before, calls = getattr(kind, name), iter(range(number + 1))

    def last(*arguments: Any, **options: Any) -> Any:
        if next(calls) == number:
            found.put((rank, "killed", time.monotonic()))
            found.close()
            found.join_thread()
            os.kill(os.getpid(), signal.SIGKILL)
        return before(*arguments, **options)

    if rank == 1:
        setattr(kind, name, last)
    try:
        said = f"{len(dict(iterate(path, device=device, window='4MiB', group=world())))} tensors"
    except Exception as error:
        said = str(error)
    at_once = time.monotonic()
    loaded = dict(iterate(path, device=device)) if rank == 0 else {}
    found.put((rank, f"{said}; {len(loaded)} alone", at_once))
    found.close()
    found.join_thread()
    os._exit(0)


def backend_of(device: str, rank: int) -> str:
    """The backend for a device, and a GPU for each rank."""
    import torch

    if device == "cpu":
        return "gloo"
    torch.cuda.set_device(rank % torch.cuda.device_count())
    return "nccl" if torch.cuda.device_count() > 1 else "gloo"


def kill(stage: str, path: Path, folder: Path, device: str) -> None:
    """Kills rank 1 in a function, at a random call of it."""
    random = Random(seed := int(os.environ.get("FOREBAY_SEED", "1")))
    for turn in range(int(os.environ.get("FOREBAY_STRESS", "1"))):
        size = random.choice([2, 3]) if device == "cpu" else 2
        number, found = random.randrange(STAGES[stage]), CONTEXT.Queue()
        arguments = (size, folder / f"store {turn}", (stage, number), found, path, device)
        each = [CONTEXT.Process(target=mortal, args=(rank, *arguments)) for rank in range(size)]
        for process in each:
            process.start()
        ended = {rank: (said, at) for rank, said, at in (found.get(timeout=60) for _ in each)}
        for process in each:
            process.join()
        said, begun = ended.pop(1)
        assert said == "killed", (seed, turn, number, said)
        assert f"; {len(load_file(path, **HOST))} alone" in ended[0][0], (seed, turn, ended)
        for said, at in ended.values():
            assert at - begun < 10, (seed, turn, said)
            is_named = "rank 1 of the group was lost" in said or LOST.search(said)
            # After the last copy, no other process needs it.
            assert is_named or ("Mesh.close" in stage and "tensors" in said), (seed, turn, said)


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_rank_is_named(files: Any, tmp_path: Path, stage: str) -> None:
    pytest.importorskip("torch")
    kill(stage, files[0], tmp_path, "cpu")


def unmet(rank: int, path: Path) -> Any:
    from forebay import _mesh

    _mesh.WAIT_MAX = 1.0
    return None if rank == 1 else load_file(path, group=world(), **HOST)


def test_ranks_that_do_not_begin_a_load_are_named(files: Any, tmp_path: Path) -> None:
    first, _, third = in_group(tmp_path, 3, unmet, files[0])
    assert "the ranks [1] of the group did not begin it in time" in first and first == third


def departed(rank: int, size: int, port: Path, found: Any, path: Path) -> None:
    """Rank 1 ends between two loads, the others wait for it."""
    import torch.distributed as dist

    store = dist.FileStore(str(port), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    load_file(path, group=world(), **HOST)
    if rank == 1:
        os._exit(0)
    begun = time.monotonic()
    with pytest.raises(Exception) as error:
        load_file(path, group=world(), **HOST)
    found.put((str(error.value), time.monotonic() - begun))
    found.close()
    found.join_thread()
    os._exit(0)


def test_a_rank_that_ends_before_it_joins_is_named(files: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = CONTEXT.Queue()
    arguments = (3, tmp_path / "store", found, files[0])
    each = [CONTEXT.Process(target=departed, args=(rank, *arguments)) for rank in range(3)]
    for process in each:
        process.start()
    for _ in range(2):
        said, seconds = found.get(timeout=60)
        assert LOST.search(said) and "of the group were lost: their processes ended" in said
        assert seconds < 10
    for process in each:
        process.join()


def counted(rank: int, path: Path) -> list[int]:
    """The keys of the store after loads."""
    import torch.distributed as dist

    store = dist.distributed_c10d._get_process_group_store(world())
    counts = []
    for _ in range(3):
        load_file(path, group=world(), **HOST)
        dist.barrier()
        counts.append(store.num_keys())
        dist.barrier()
    return counts


def test_loads_leave_no_keys(files: Any, tmp_path: Path) -> None:
    first, *others = in_group(tmp_path, 2, counted, files[0])[0]
    assert others == [first, first]


def forked(rank: int, path: Path) -> str:
    """What a forked child says of a load in the group of its parent."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=of_child, args=(path, theirs))
    child.start()
    said = ours.recv() if ours.poll(60) else "nothing"
    child.join()
    return str(said)


def of_child(path: Path, connection: Any) -> None:
    with pytest.raises(Exception) as error:
        load_file(path, group=world(), **HOST)
    connection.send(str(error.value))


def test_the_group_of_a_parent_is_refused(files: Any, tmp_path: Path) -> None:
    for said in in_group(tmp_path, 2, forked, files[0]):
        assert "this process was forked after its group was made" in said


def written(rank: int, path: Path) -> list[str]:
    """One rank finds that a file was written to."""
    from forebay.safetensors import _pages

    if rank == 1:
        _pages.Stamp.check = outdated  # type: ignore[method-assign]
    said = []
    for load in (load_file, lambda *given, **how: dict(iterate(*given, **how))):
        with pytest.raises(Exception) as error:
            load(path, group=world(), **HOST)
        said.append(f"{type(error.value).__name__}: {error.value}")
    return said


def outdated(_: Any) -> None:
    from forebay.safetensors import _pages

    raise _pages.changed("model", "it was written to during the load", "")


def test_all_fail_if_one_finds_a_changed_file(files: Any, tmp_path: Path) -> None:
    ours, theirs = in_group(tmp_path, 2, written, files[0])
    assert all("rank 1 of the group could not end the load" in said for said in ours)
    assert all("FileChanged" in said for said in theirs)


def interrupted_early(rank: int, path: Path) -> Any:
    """Rank 0 stops waiting for rank 2, which never comes."""
    from forebay.safetensors import _group

    if rank == 0:
        _group.time = _Interrupting()  # type: ignore[assignment]
    try:
        return None if rank == 2 else load_file(path, group=world(), **HOST)
    except KeyboardInterrupt:
        return "interrupted"


class _Interrupting:
    monotonic = staticmethod(time.monotonic)

    def sleep(self, seconds: float) -> None:
        import torch.distributed as dist

        store = dist.distributed_c10d._get_process_group_store(world())
        if store.check(["forebay/group/1"]):  # rank 1 is there
            raise KeyboardInterrupt


def test_no_rank_waits_where_another_stopped_waiting(files: Any, tmp_path: Path) -> None:
    first, second, _ = in_group(tmp_path, 3, interrupted_early, files[0])
    assert first == "interrupted" and "did not begin it in time, or failed" in second


def late(rank: int, path: Path) -> float:
    """Rank 1 never loads; the timeout of rank 0 is 2 s."""
    import torch.distributed as dist

    begun = time.monotonic()
    if rank == 0:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=2), world())
        with pytest.raises(Exception, match=r"the ranks \[1\] of the group did not begin it in time"):
            load_file(path, group=world(), **HOST)
    return time.monotonic() - begun


def test_a_load_waits_as_long_as_the_timeout_of_its_group(files: Any, tmp_path: Path) -> None:
    waited, _ = in_group(tmp_path, 2, late, files[0])
    assert isinstance(waited, float) and 2 <= waited < 60, waited


def of_threads(rank: int, path: Path) -> Any:
    with ThreadPoolExecutor() as threads:
        loads = [threads.submit(load_file, path, group=world(), **HOST) for _ in range(3)]
        return [one.result() for one in loads]


def test_threads_load_in_one_group(files: Any, tmp_path: Path) -> None:
    for found in in_group(tmp_path, 2, of_threads, files[0]):
        assert all(same(one, files[1]) for one in found)


def outside(rank: int, path: Path) -> Any:
    import torch.distributed as dist

    return load_file(path, group=dist.new_group([1]), **HOST)


def test_a_process_outside_the_group_is_refused(files: Any, tmp_path: Path) -> None:
    refused, found = in_group(tmp_path, 2, outside, files[0])
    assert refused == "ValueError: this process is not in the `group`" and same(found, files[1])


def test_connections_of_strangers_do_not_count() -> None:
    from forebay._mesh import Listener

    listeners = {rank: Listener("127.0.0.1") for rank in range(2)}
    addresses = {rank: one.address for rank, one in listeners.items()}
    port = int(addresses[0].split()[2])
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].sendall(b"\0")  # the third one is silent
    with ThreadPoolExecutor() as threads:
        first, second = threads.map(lambda one: one.connect(addresses), listeners.values())
        assert list(threads.map(lambda one: one.exchange(b"x"), [first, second])) == [[b"x"] * 2] * 2
        assert all(threads.map(lambda one: one.close(), [first, second]))
    for stranger in strangers:
        stranger.close()


def served_by_hosts(rank: int, path: Path) -> Any:
    """Two hosts with two ranks each, and files under a path of their own."""
    from forebay.safetensors import _group

    _group.PATIENCE, _group.host = 1000.0, lambda: f"host {rank // 2}"
    group = _group.OfHost(world(), f"path of {rank // 2}")
    return dict(iterate(path, group=group, **HOST))


def test_ranks_of_a_server_do_not_wait_for_other_hosts(files: Any, tmp_path: Path) -> None:
    found = in_group(tmp_path, 4, served_by_hosts, files[0])
    assert all(same(one, files[1]) for one in found)


def of_sources(rank: int, path: Path) -> Any:
    """Two models in turn, as a server reads a model and that which drafts for it."""
    from forebay.safetensors import _group

    _group.CHUNK = 1 << 18
    first, second = (
        iterate(path / f"{number}.safetensors", group=_group.OfHost(world(), number), **HOST)
        for number in "12"
    )
    return dict(pair for both in zip_longest(first, second) for pair in both if pair)


def test_ranks_load_several_sources_at_once(files: Any, tmp_path: Path) -> None:
    assert all(same(found, files[1]) for found in in_group(tmp_path, 3, of_sources, files[0]))


def of_other_files(rank: int, path: Path) -> Any:
    """Each rank has a file of its own with tensors of the same names and shapes."""
    return load_file(path.parent / f"{rank}.safetensors", group=world(), **HOST)


def test_ranks_that_load_other_files_are_refused(tmp_path: Path) -> None:
    for rank in range(2):
        save_file({"b": numpy.full(3_000_000, rank, "uint32")}, tmp_path / f"{rank}.safetensors")
    ours, theirs = in_group(tmp_path, 2, of_other_files, tmp_path / "model")
    assert "the ranks 0 and 1 of the group load different tensors" in ours and ours == theirs


def interrupted(rank: int, path: Path) -> Any:
    """Rank 1 keeps the error of a tensor that it cannot copy, until rank 0 has ended."""
    import forebay
    import torch

    tensors = {name: torch.zeros_like(one) for name, one in load_file(path, "cpu").items()}
    if rank == 1:
        tensors["b"] = _Unwritable(tensors["b"])
    try:
        forebay.load_into(tensors, path, group=world(), window="4MiB")
    except Exception as error:
        ended, until = path.with_name("ended"), time.monotonic() + 60
        if rank == 0:
            ended.touch()
        while not ended.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return f"{ended.exists()} {error}"


class _Unwritable:
    def __init__(self, tensor: Any) -> None:
        self.device, self.shape = tensor.device, tensor.shape

    def copy_(self, tensor: Any) -> None:
        raise MemoryError("none is left")


def test_a_rank_that_cannot_copy_ends_the_load_of_all(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    arrays = {name: numpy.ones(4_000_000, "uint32") for name in "abcdefgh"}
    save_file(arrays, path)
    ours, theirs = in_group(tmp_path, 2, interrupted, path)
    assert "rank 1 of the group ended its load early" in ours
    assert "True none is left" in theirs
