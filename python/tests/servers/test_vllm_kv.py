"""vLLM's secondary tier in a store of blocks, driven as its tiering manager does."""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm", reason="no vLLM")

import numpy as np
from vllm.v1.kv_offload import config
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    OffloadingEvent,
    ReqContext,
    ScheduleEndContext,
    make_offload_key,
)
from vllm.v1.kv_offload.tiering.base import TransferJob
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory
from vllm.v1.kv_offload.tiering.manager import (
    CPUPrimaryTierOffloadingManager,
    TieringOffloadingManager,
)

BLOCK, COUNT = 96 * 1024, 40


def spec(dtype: str = "bfloat16", layout: str | None = None, events: bool = False) -> Any:
    """What vLLM knows of its model."""
    parallel = config.OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False)
    made = config.OffloadingConfig(
        groups=(config.OffloadingGroupConfig(16, ("layer.0",), 0),),
        worker_kv_bytes_per_block=BLOCK,
        enable_kv_cache_events=False,
        extra_config={},
        engine_id="one",
        model=config.OffloadingModelConfig("llama", dtype),
        cache=config.OffloadingCacheConfig(16, 1),
        parallel=parallel,
        kv_cache_layout=layout,
    )
    told = SimpleNamespace(enable_kv_cache_events=events)
    return SimpleNamespace(config=made, blocks_per_chunk=1, kv_events_config=told, extra_config={})


class Tier:
    """A tier, and the memory of the primary one."""

    def __init__(self, root: Path, what: Any = None, **options: Any) -> None:
        self._pages = mmap.mmap(-1, BLOCK * COUNT)  # as the primary tier's memory
        view = memoryview(self._pages).cast("B", (COUNT, BLOCK))
        self.primary = np.asarray(view)
        given = {"root": str(root), "capacity": "64MiB", "keep_free": 0, **options}
        given = {"namespace": "main", **given}
        self.tier = SecondaryTierFactory.create_secondary_tier(
            {"type": "ForebayTier", "module_path": "forebay.vllm.kv", **given}, view, what or spec()
        )
        region = SimpleNamespace(create_kv_memoryview=lambda: view)
        self.manager = TieringOffloadingManager(
            CPUPrimaryTierOffloadingManager(COUNT, region), [self.tier]
        )
        self._number = 0
        self.request = ReqContext("a request")

    def run(self, keys: list[Any], chunks: list[int], load: bool) -> Any:
        """Starts a job, and waits for its result as a scheduler does."""
        self._number += 1
        job = TransferJob(self._number, keys, np.array(chunks), load, self.request)
        (self.tier.submit_load if load else self.tier.submit_store)(job)
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if ended := list(self.tier.get_finished_jobs()):
                [result] = ended
                assert result.job_id == self._number
                return result
            assert self.tier.has_pending_work()
            time.sleep(0.001)
        raise AssertionError("the job does not end")

    def lookup(self, key: Any) -> Any:
        until = time.monotonic() + 20
        while (found := self.tier.lookup(key, self.request)) is LookupResult.RETRY:
            assert time.monotonic() < until
        return found


def key(number: int) -> Any:
    return make_offload_key(number.to_bytes(32, "little"), 0)


def test_stored_blocks_are_loaded_into_other_chunks(tmp_path: Path) -> None:
    one = Tier(tmp_path)
    one.primary[:10] = np.arange(10, dtype=np.uint8)[:, None]
    keys = [key(number) for number in range(10)]
    assert one.lookup(keys[0]) is LookupResult.MISS
    stored = one.run(keys, list(range(10)), load=False)
    assert stored.success and stored.transfer_bytes == 10 * BLOCK
    assert [one.lookup(it) for it in keys] == [LookupResult.HIT] * 10

    loaded = one.run(keys, list(range(20, 30)), load=True)
    assert loaded.success and loaded.successful_keys is None
    assert (one.primary[20:30] == one.primary[:10]).all()
    assert not one.primary[10:20].any() and not one.primary[30:].any()
    one.tier.shutdown()


def test_a_job_says_which_keys_were_loaded(tmp_path: Path) -> None:
    one = Tier(tmp_path)
    one.primary[:2] = 7
    assert one.run([key(0), key(2)], [0, 1], load=False).success
    result = one.run([key(0), key(1), key(2)], [5, 6, 7], load=True)
    assert not result.success and set(result.successful_keys) == {key(0), key(2)}
    assert (one.primary[[5, 7]] == 7).all()
    assert not one.run([key(8)], [5], load=True).success
    one.tier.shutdown()


def test_another_process_finds_it_and_another_type_or_layout_does_not(tmp_path: Path) -> None:
    one, same = (Tier(tmp_path, spec(layout="NHD")) for _ in range(2))
    one.run([key(0)], [0], load=False)
    assert same.lookup(key(0)) is LookupResult.HIT
    for what in (spec("float8_e4m3", layout="NHD"), spec(layout="HND")):
        assert Tier(tmp_path, what).lookup(key(0)) is LookupResult.MISS
    assert Tier(tmp_path, spec(layout="NHD"), namespace="v2").lookup(key(0)) is LookupResult.MISS


def test_weights_without_a_name_are_warned_of(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match="does not pass the revision of the weights"):
        Tier(tmp_path, namespace="")


def test_a_block_that_cannot_be_read_is_a_miss_for_its_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Tier(tmp_path)
    assert one.run([key(0)], [0], load=False).success
    there = one.tier._store.find_at_once
    lost = key(1)  # the index has it, and the drive does not

    def find_at_once(keys: list[Any]) -> list[bool | None]:
        return [True] if keys == [lost] else there(keys)

    monkeypatch.setattr(one.tier._store, "find_at_once", find_at_once)
    for number in range(2):
        request = ReqContext(f"request {number}")
        one.manager.on_new_request(request)
        found, until = [LookupResult.RETRY], time.monotonic() + 20
        # vLLM defers a request while a lookup says that a block is on its way.
        while {LookupResult.RETRY, LookupResult.HIT_PENDING}.intersection(found):
            assert time.monotonic() < until, "the request waits forever"
            found = [one.manager.lookup(it, request) for it in (key(0), lost)]
            one.manager.on_schedule_end(ScheduleEndContext((), ()))
        assert found == [LookupResult.HIT, LookupResult.MISS]
        one.manager.on_request_finished(request)
    # A later request looks again, and finds the block when it is stored again.
    assert one.run([lost], [2], load=False).success
    assert one.run([lost], [3], load=True).success
    assert one.tier.lookup(lost, ReqContext("later")) is LookupResult.HIT


def test_vllm_skips_stores_while_half_of_its_memory_is_unwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Tier(tmp_path)
    calls: list[Any] = []

    def slow(keys: list[Any], _memory: Any) -> Any:
        calls.append(SimpleNamespace(done=lambda: False, result=lambda: [True] * len(keys)))
        return calls[-1]

    monkeypatch.setattr(one.tier._store, "start_set", slow)
    one.manager.on_new_request(one.request)

    def offload(number: int) -> None:
        keys = [key(number), key(number + 1)]
        assert one.manager.prepare_store(keys, one.request)
        one.manager.complete_store(keys, one.request)

    for number in range(0, COUNT, 2):
        offload(number)
    assert len(calls) == COUNT // 4 + 1
    counted = one.manager.get_stats().reduce()
    dropped = "vllm:kv_offload_tiering_backpressure_blocks_dropped:('1:ForebayTier',)"
    assert counted[dropped] == COUNT - 2 * len(calls)
    for call in calls:
        call.done = lambda: True
    one.manager.on_schedule_end(ScheduleEndContext((), ()))
    offload(COUNT)
    assert len(calls) == COUNT // 4 + 2
    own = {"backpressure_cls": "EMABackpressureDetector"}
    detector = Tier(tmp_path, backpressure=own).tier.bp_detector
    assert type(detector).__name__ == "EMABackpressureDetector"


def test_events_name_the_stored_blocks(tmp_path: Path) -> None:
    one = Tier(tmp_path, spec(events=True), enable_kv_events=True, locality="LOCAL")
    assert one.run([key(0), key(1)], [0, 1], load=False).success
    assert one.run([key(0)], [2], load=True).success
    stored = OffloadingEvent([key(0), key(1)], one.tier.medium, False, Locality.LOCAL)
    assert list(one.tier.take_events()) == [stored]
    assert list(one.tier.take_events()) == []
    with pytest.warns(RuntimeWarning, match="no KV events"):
        other = Tier(tmp_path, enable_kv_events=True)
    other.run([key(2)], [0], load=False)
    assert list(other.tier.take_events()) == []


def test_chunks_that_vllm_uses_are_evicted_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Tier(tmp_path, capacity="8MiB")  # 64 to 84 chunks
    touches: list[Any] = []
    start = one.tier._store.start_touch
    monkeypatch.setattr(one.tier._store, "start_touch", lambda keys: touches.append(start(keys)))
    keys = [key(number) for number in range(96)]
    assert one.run(keys[:40], list(range(40)), load=False).success
    time.sleep(0.01)
    one.tier.touch(keys[:40:2], one.request)
    one.tier.touch([key(999)], one.request)
    assert [sum(call.result()) for call in touches] == [20, 0]
    time.sleep(0.01)
    for first in (40, 68):
        assert one.run(keys[first : first + 28], list(range(28)), load=False).success
    found = [one.lookup(it) is LookupResult.HIT for it in keys[:40]]
    assert sum(found[::2]) > sum(found[1::2])
    one.tier.shutdown()


def test_drained_jobs_have_ended(tmp_path: Path) -> None:
    one = Tier(tmp_path)
    for number in range(8):
        job = TransferJob(number, [key(number)], np.array([number]), False, one.request)
        one.tier.submit_store(job)
    one.tier.drain_jobs()
    assert {it.job_id for it in one.tier.get_finished_jobs()} == set(range(8))
    assert not one.tier.has_pending_work()


def test_counters_reach_vllm(tmp_path: Path) -> None:
    one = Tier(tmp_path)
    one.run([key(0)], [0], load=False)
    one.run([key(0), key(1)], [0, 1], load=True)
    counted = one.tier.get_stats().reduce()
    label = f":('{tmp_path}',)"
    name = "vllm:kv_offload_forebay_"
    assert counted[f"{name}hits{label}"] == 1
    assert counted[f"{name}missed:('{tmp_path}', 'absent')"] == 1
    assert counted[f"{name}bytes_written{label}"] == BLOCK
    assert one.tier.get_stats() is None
    known = type(one.tier).build_metric_definitions({})
    assert all(each.split(":(")[0] in known for each in counted)


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown option `capcity`; use `root`, `capacity`"):
        Tier(tmp_path, capcity="1GiB")
