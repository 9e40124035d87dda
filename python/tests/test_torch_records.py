"""Records of fixed size in batches: their order, their contents, and how a loop over them ends."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import forebay
import pytest
from conftest import program
from tensors import device_or_skip, torch_or_skip

torch = torch_or_skip()

from forebay.torch import RecordDataset  # noqa: E402  # after it is known that there is a torch
from forebay.torch._ahead import Ahead  # noqa: E402
from forebay.torch._order import Order, share  # noqa: E402

HEADER = 5
ORDER_OF_20 = [17, 7, 5, 18, 12, 19, 2, 15, 0, 3, 11, 8, 14, 13, 6, 10, 16, 1, 4, 9]
COUNTS = [40, 0, 1, 62]
TOTAL = sum(COUNTS)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Files of records `[number, 7 * number, -number]`, behind a header."""
    made, number = [], 0
    for index, count in enumerate(COUNTS):
        rows = [[n, 7 * n, -n] for n in range(number, number + count)]
        raw = torch.tensor(rows, dtype=torch.int32).reshape(-1).view(torch.uint8).tolist()
        path = tmp_path / f"records-{index}"
        path.write_bytes(b"h" * HEADER + bytes(raw))
        made.append(path)
        number += count
    return made


def dataset(paths: Any, **changes: Any) -> RecordDataset:
    given: dict[str, Any] = {"batch_size": 8, "header": HEADER, "device": "cpu"}
    given.update(changes)
    return RecordDataset(paths, 3, torch.int32, **given)


def numbers(batches: Any) -> list[int]:
    found: list[int] = []
    for batch in batches:
        first = batch[:, 0].tolist()
        assert batch.tolist() == [[n, 7 * n, -n] for n in first]
        found += first
    return found


def threads() -> int:
    return sum(thread.name == "forebay-records" for thread in threading.enumerate())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("prefetch", [1, 2, 50])
def test_every_record_appears_once_and_whole(paths: list[Path], device: str, prefetch: int) -> None:
    records = dataset(paths, device=device_or_skip(device), prefetch=prefetch)
    batches = list(records)
    assert len(batches) == len(records) == 13
    assert [len(batch) for batch in batches] == [8] * 12 + [TOTAL - 96]
    assert all(batch.device.type == device and batch.dtype == torch.int32 for batch in batches)
    found = numbers(batches)
    assert sorted(found) == list(range(TOTAL)) and found != list(range(TOTAL))
    assert threads() == 0


def test_without_shuffling_records_come_in_their_files_order(paths: list[Path]) -> None:
    assert numbers(dataset(paths, shuffle=False)) == list(range(TOTAL))
    assert numbers(dataset(paths[0], shuffle=False, batch_size=1000)) == list(range(40))


def test_the_order_is_the_seeds_and_the_epochs(paths: list[Path]) -> None:
    first, same, other = dataset(paths), dataset(paths), dataset(paths, seed=1)
    orders = [numbers(first)]
    assert numbers(first) == numbers(same) == orders[0]
    orders.append(numbers(other))
    for epoch in [1, 2]:
        first.set_epoch(epoch)
        orders.append(numbers(first))
    assert len({tuple(order) for order in orders}) == 4
    first.set_epoch(0)
    loop = iter(first)
    first.set_epoch(5)  # counts for the next loop
    assert numbers(loop) == orders[0]


def test_the_order_never_changes_from_version_to_version() -> None:
    order = Order(20, True, seed=7, epoch=3)
    assert order.at(0, 20).tolist() == ORDER_OF_20
    assert order.at(5, 4).tolist() == ORDER_OF_20[5:9]


@pytest.mark.parametrize("total", [1, 2, 3, 63, 64, 65, 1000, 4097])
def test_a_shuffled_order_is_a_permutation(total: int) -> None:
    found = Order(total, True, seed=total, epoch=1).at(0, total)
    assert sorted(found.tolist()) == list(range(total))


def test_the_end_of_a_huge_order_costs_no_more_than_its_beginning() -> None:
    total = 3 * 10**12
    order = Order(total, True, seed=1, epoch=0)
    found = torch.cat([order.at(0, 1000), order.at(total - 1000, 1000)])
    assert len(set(found.tolist())) == 2000 and 0 <= int(found.min()) and int(found.max()) < total


def test_a_shuffled_order_favours_no_permutation() -> None:
    # 24 permutations of 4 records, 100 times each on average: the sum of squares over 100 exceeds
    # 70 for one seed in more than a million where they are equally likely. The seed is fixed.
    seen = Counter(tuple(Order(4, True, 11, epoch).at(0, 4).tolist()) for epoch in range(2400))
    assert len(seen) == 24
    assert sum((count - 100) ** 2 / 100 for count in seen.values()) < 70


def test_neighbours_do_not_stay_neighbours() -> None:
    found = Order(100_000, True, 3, 0).at(0, 100_000)
    steps = (found[1:] - found[:-1]).abs()
    assert int((steps < 100).sum()) < 400  # 200 where all orders are equally likely
    assert abs(float(steps.double().mean()) / 100_000 - 1 / 3) < 0.01


@pytest.mark.parametrize("world_size", [1, 2, 3, 7, 200])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_the_records(paths: list[Path], world_size: int, shuffle: bool) -> None:
    ranks = range(world_size)
    parts = [
        numbers(dataset(paths, rank=rank, world_size=world_size, shuffle=shuffle)) for rank in ranks
    ]
    assert sorted(sum(parts, [])) == list(range(TOTAL))
    lengths = {len(part) for part in parts}
    assert max(lengths) - min(lengths) <= 1
    assert share(TOTAL, 0, world_size, True)[1] == TOTAL // world_size


def test_ranks_have_as_many_batches_where_the_last_is_dropped(paths: list[Path]) -> None:
    made = [dataset(paths, rank=rank, world_size=4, drop_last=True) for rank in range(4)]
    batches = [list(one) for one in made]
    assert [len(some) for some in batches] == [len(one) for one in made] == [3] * 4
    assert all(len(batch) == 8 for some in batches for batch in some)
    found = [number for some in batches for number in numbers(some)]
    assert len(set(found)) == 96


def test_an_epoch_is_resumed(paths: list[Path]) -> None:
    records = dataset(paths)
    assert numbers(records.batches(9)) == numbers(records)[72:]
    assert list(records.batches(13)) == [] == list(records.batches(99))


def test_batches_are_the_loops_own_to_keep(paths: list[Path]) -> None:
    kept = list(dataset(paths, shuffle=False, prefetch=1))
    assert len({batch.data_ptr() for batch in kept}) == len(kept)
    kept[0].zero_()
    assert numbers(kept[1:]) == list(range(8, TOTAL))


def test_a_loop_that_is_left_leaves_nothing(paths: list[Path]) -> None:
    records = dataset(paths, batch_size=2)
    for _ in range(20):
        for _ in records:
            break
        assert threads() == 0
    loop = iter(records)
    next(loop)
    del loop
    assert threads() == 0
    with pytest.raises(RuntimeError, match="in the loop"):
        for _ in records:
            raise RuntimeError("in the loop")
    assert threads() == 0
    assert sorted(numbers(records)) == list(range(TOTAL))


def test_two_loops_run_concurrently(paths: list[Path]) -> None:
    records = dataset(paths)
    pairs = list(zip(records, records, strict=True))
    assert numbers(one for one, _ in pairs) == numbers(other for _, other in pairs)


def test_no_more_is_read_ahead_than_requested(paths: list[Path]) -> None:
    seen = []

    class Counting(forebay.Engine):
        def read_many(self, *requests: Any, **arrays: Any) -> Any:
            seen.append(len(arrays["at"]))
            return super().read_many(*requests, **arrays)

    loop = iter(dataset(paths, prefetch=3, engine=Counting()))
    next(loop)
    until = time.monotonic() + 30
    while len(seen) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.2)  # for what must not come
    assert seen == [8] * 4
    loop.close()  # type: ignore[attr-defined]
    assert seen == [8] * 4


def test_a_failure_is_raised_at_its_turn(paths: list[Path]) -> None:
    records = dataset(paths, shuffle=False, batch_size=10, prefetch=20)
    with open(paths[3], "r+b") as file:
        file.truncate(HEADER + 12 * 30)  # of the last file's 62 records
    loop = iter(records)
    got = [next(loop) for _ in range(7)]
    assert numbers(got) == list(range(70))
    with pytest.raises(forebay.EndOfFile, match="records-3"):
        next(loop)
    with pytest.raises(StopIteration):
        next(loop)
    assert threads() == 0


def test_a_file_that_vanished_is_named(paths: list[Path]) -> None:
    records = dataset(paths)
    paths[0].unlink()
    with pytest.raises(FileNotFoundError, match="records-0"):
        list(records)


def test_more_files_than_are_kept_open(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"{number}").write_bytes(number.to_bytes(4, "little"))
    paths = [tmp_path / f"{number}" for number in range(600)]
    records = RecordDataset(paths, (), torch.int32, "cpu", batch_size=400)
    found = torch.cat(list(records))
    assert found.shape == (600,) and sorted(found.tolist()) == list(range(600))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"header": 4}, "records-0.*485 bytes.*header of 4"),
        ({"header": 1000}, "records-0.*header of 1000"),
        ({"batch_size": 0}, "`batch_size` cannot be 0"),
        ({"prefetch": 0}, "`prefetch` cannot be 0"),
        ({"rank": 2, "world_size": 2}, "`rank` cannot be 2"),
        ({"world_size": 0}, "`world_size` cannot be 0"),
    ],
)
def test_invalid_arguments_are_refused(
    paths: list[Path], changes: dict[str, int], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        dataset(paths, **changes)


def test_nothing_is_an_epoch_of_no_batches(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    for paths in [[], [tmp_path / "empty"]]:
        records = RecordDataset(paths, 4, torch.uint8, "cpu", batch_size=2)
        assert len(records) == 0 and list(records) == []


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_workers_of_a_loader_share_the_batches(paths: list[Path], workers: int) -> None:
    loader = torch.utils.data.DataLoader(dataset(paths), batch_size=None, num_workers=workers)
    for _ in range(2):
        found = numbers(loader)
        assert sorted(found) == list(range(TOTAL))
    assert len(loader) == 13


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_new_epoch_reaches_workers_that_are_running(paths: list[Path], context: str) -> None:
    records = dataset(paths, batch_size=1)
    loader = torch.utils.data.DataLoader(
        records,
        batch_size=None,
        num_workers=1,
        persistent_workers=True,
        multiprocessing_context=context,
    )
    for epoch in [0, 1, 2, 0]:
        records.set_epoch(epoch)
        assert records.epoch == epoch
        alone = dataset(paths, batch_size=1)
        alone.set_epoch(epoch)
        assert numbers(loader) == numbers(alone)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_killed_worker_is_an_error_and_leaves_nothing(
    paths: list[Path], tmp_path: Path, context: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"""
import contextlib, gc, os, signal
from collections import Counter
import torch
from forebay.torch import RecordDataset

TORCHS_OWN = ("socket:", "pipe:", "/dev/shm/", "/torch_")


def owned():
    gc.collect()
    tasks = "/proc/self/task"
    found = Counter()
    for task in os.listdir(tasks):
        with contextlib.suppress(OSError):  # a thread that ends meanwhile
            name = open(f"{{tasks}}/{{task}}/comm").read()
            found[name] += name.startswith("forebay")
    for number in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{{number}}"
        if os.path.lexists(link) and not (name := os.readlink(link)).startswith(TORCHS_OWN):
            found[name] += 1
    return found


if __name__ == "__main__":
    records = RecordDataset({[str(path) for path in paths]!r}, 3, torch.int32, "cpu",
                            batch_size=1, header={HEADER}, prefetch=3)
    loader = torch.utils.data.DataLoader(records, batch_size=None, num_workers=2,
                                         multiprocessing_context={context!r})
    assert len(list(loader)) == {TOTAL}
    before = owned()
    loop = iter(loader)
    next(loop)
    # Torch's own handler raises wherever the program is.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    workers = list(loop._workers)
    os.kill(workers[0].pid, signal.SIGKILL)
    try:
        for _ in loop:
            pass
    except (RuntimeError, EOFError, OSError):  # the last two if a batch is on its way
        print("raised")
    del loop
    gc.collect()
    assert not any(worker.is_alive() for worker in workers)
    assert owned() <= before, (owned(), before)
    assert len(list(loader)) == {TOTAL}
""")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout) == (0, "raised\n"), done.stderr


def test_a_copy_has_an_epoch_of_its_own(paths: list[Path]) -> None:
    records = dataset(paths)
    records.set_epoch(3)
    for copied in [copy.deepcopy(records), pickle.loads(pickle.dumps(records))]:
        assert copied.epoch == 3 and numbers(copied) == numbers(records)
        copied.set_epoch(4)
        assert records.epoch == 3 and copied.epoch == 4


@pytest.mark.parametrize("limit", [64, 1024])
def test_open_files_stay_within_the_limit_of_the_process(tmp_path: Path, limit: int) -> None:
    code = f"""
import os, resource, torch
from forebay.torch import RecordDataset
paths = []
for number in range(1200):
    paths.append({str(tmp_path)!r} + f"/{{number}}")
    with open(paths[-1], "wb") as file:
        file.write(number.to_bytes(4, "little"))
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
records = RecordDataset(paths, (), torch.int32, "cpu", batch_size=1000)
found = torch.cat(list(records)).tolist()
assert sorted(found) == list(range(1200)) and found != sorted(found)
print("all")
"""
    assert program(code).stdout == "all\n"


def test_another_default_device_does_not_disturb(paths: list[Path]) -> None:
    expected = numbers(dataset(paths))
    before = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        found = [batch.clone() for batch in dataset(paths)]
        order = Order(20, True, seed=7, epoch=3).at(0, 20)  # in a loop, a thread without defaults
    finally:
        torch.set_default_device(before)
    assert order.tolist() == ORDER_OF_20
    assert numbers(found) == expected


def test_whole_numbers_of_other_libraries_are_numbers(paths: list[Path]) -> None:
    np = pytest.importorskip("numpy", reason="no numpy")
    for number in [np.int64, np.array, lambda n: torch.tensor(n)]:
        changes = {
            "batch_size": number(8),
            "header": number(HEADER),
            "prefetch": number(2),
            "seed": number(3),
            "rank": number(0),
            "world_size": number(1),
        }
        records = RecordDataset(paths, number(3), torch.int32, "cpu", **changes)
        records.set_epoch(number(2))
        expected = dataset(paths, seed=3)
        expected.set_epoch(2)
        assert numbers(records.batches(number(1))) == numbers(expected.batches(1))
        assert RecordDataset(paths, [number(3)], torch.int32, "cpu", **changes).record_shape == (3,)
    with pytest.raises(TypeError, match="`batch_size` cannot be `8.5`"):
        dataset(paths, batch_size=8.5)


def test_a_loop_may_be_closed_by_the_thread_that_reads_for_it() -> None:
    # As the garbage collector does, which runs in whatever thread it likes.
    ended: list[object] = []
    made: list[Ahead[int]] = []
    ready = threading.Event()

    def values() -> Generator[int, None, None]:
        ready.wait(60)
        try:
            made[0].close()
        except RuntimeError as error:
            ended.append(error)
        yield 1

    made.append(Ahead(values(), 1, "forebay-records"))
    ready.set()
    with pytest.raises(StopIteration):
        made[0].take()
    assert not ended


def test_a_process_may_end_in_the_middle_of_a_loop(paths: list[Path]) -> None:
    code = f"""
import torch
from forebay.torch import RecordDataset
records = RecordDataset({[str(path) for path in paths]!r}, 3, torch.int32, "cpu", batch_size=2,
                        header={HEADER}, prefetch=3)
loop = iter(records)
print(len(next(loop)))
"""
    for _ in range(5):  # whatever the thread is at
        done = program(code)
        assert (done.stdout, done.stderr) == ("2\n", "")


def test_a_forked_process_has_loops_of_its_own(paths: list[Path]) -> None:
    code = f"""
import os
import forebay, torch
from forebay.torch import RecordDataset
records = RecordDataset({[str(path) for path in paths]!r}, 3, torch.int32, "cpu", batch_size=2,
                        header={HEADER})
loop = iter(records)
next(loop)
child = os.fork()
if child == 0:
    try:
        next(loop)
    except forebay.Forked as error:
        print(len(torch.cat(list(records))), error, flush=True)
    raise SystemExit(3)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
print(len(torch.cat(list(loop))), flush=True)
"""
    first, last = program(code).stdout.splitlines()
    assert first.startswith("103 the loop belongs to the parent process") and last == "101"


def test_labels_are_found_by_the_numbers_of_records(paths: list[Path]) -> None:
    records = dataset(paths, rank=1, world_size=2)
    records.set_epoch(3)
    batches = list(records)
    for index, batch in enumerate(batches):
        assert records.numbers(index).tolist() == batch[:, 0].tolist()
    for wrong in [-1, len(batches)]:
        with pytest.raises(IndexError, match="there is no batch"):
            records.numbers(wrong)
    text = f"103 records of [3] torch.int32 in 4 files, {len(batches)} batches"
    assert text in repr(records)
