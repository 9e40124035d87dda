"""Keeps vLLM's KV cache on drives: a secondary tier, by configuration alone.

``docs/kv-cache.md`` of the repository has the configuration.
"""

# mypy: disable-error-code="import-not-found,unused-ignore,misc"
from __future__ import annotations

import ctypes
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
        OffloadingConnectorStats,
    )
    from vllm.v1.kv_offload.base import (
        Locality,
        LookupResult,
        Medium,
        OffloadingCounterMetadata,
        OffloadingEvent,
    )
    from vllm.v1.kv_offload.file_mapper import FileMapper
    from vllm.v1.kv_offload.tiering.backpressure import BackpressureDetector, DropStorePolicy
    from vllm.v1.kv_offload.tiering.base import (
        JobResult,
        RequestOffloadingContext,
        SecondaryTierManager,
    )
except ImportError as error:
    raise ImportError(
        f"forebay.vllm.kv needs a vLLM with secondary tiers (0.32 is tested): {error}"
    ) from error

from ..blocks import COUNTERS, from_config

if TYPE_CHECKING:
    from ..blocks import BlockCall

__all__ = ["ForebayTier"]

_PREFIX = "vllm:kv_offload_forebay_"


@dataclass
class _Job:
    keys: list[Any]
    call: BlockCall
    started: float
    is_load: bool
    request: Any


class _Failed(set[Any]):
    """Keys whose load has failed for a request: its state in vLLM."""


class _Unwritten(BackpressureDetector):
    """Skips stores while half of the primary tier waits to be written."""

    def __init__(self, jobs: dict[int, _Job], chunks: int) -> None:
        super().__init__(DropStorePolicy())
        self._jobs, self._chunks = jobs, chunks

    def is_under_pressure(self) -> bool:
        unwritten = sum(len(job.keys) for job in self._jobs.values() if not job.is_load)
        return 2 * unwritten > self._chunks

    def on_store_completed(self, elapsed_s: float, num_bytes: int) -> None:
        """The jobs in progress are enough."""

    def reset(self) -> None:
        self.policy.reset()


class ForebayTier(SecondaryTierManager):
    """Blocks of the primary tier's memory in a store of blocks.

    Args:
        enable_kv_events: emit events of stored blocks, if vLLM's KV cache events are enabled.
        locality: ``"LOCAL"`` or ``"REMOTE"``: where these events say that the blocks are.
        config: ``root``, ``capacity``, and the other arguments of `forebay.blocks.BlockStore`.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        module_path: str = "",
        enable_kv_events: bool = False,
        locality: str | None = None,
        **config: Any,
    ) -> None:
        self._jobs: dict[int, _Job] = {}
        detector = backpressure_detector or _Unwritten(self._jobs, len(primary_kv_view))
        super().__init__(offloading_spec, primary_kv_view, tier_type, detector)
        self.locality = None if locality is None else Locality(locality)
        is_enabled = offloading_spec.kv_events_config.enable_kv_cache_events
        self._emits_events = enable_kv_events and is_enabled
        if enable_kv_events and not is_enabled:
            text = "forebay for vLLM: no KV events, since vLLM's `kv_events_config` disables them"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        self._events: list[Any] = []
        # Blocks of another model, type, layout or rank do not match.
        mapper = FileMapper.from_offloading_spec(
            root_dir="",
            offloading_spec=offloading_spec,
            blocks_per_file=offloading_spec.blocks_per_chunk,
            parallel_agnostic=True,
        )
        layout = offloading_spec.config.kv_cache_layout
        about = {**mapper.get_run_config(), "rank": mapper.rank, "layout": layout}
        self._store = from_config("vLLM", config, about, "the revision of the weights")
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(primary_kv_view))
        self._lookups: dict[Any, BlockCall] = {}

    def lookup(self, key: Any, req_context: Any) -> Any:
        """HIT, MISS, or RETRY while the index is read from the drive.

        A key whose load failed is a MISS for its request from then on: vLLM would load it again.
        """
        if key in (req_context.get_state(_Failed) or ()):
            return LookupResult.MISS
        if call := self._lookups.get(key):
            if not call.done():
                return LookupResult.RETRY
            del self._lookups[key]
            return LookupResult.HIT if call.result()[0] else LookupResult.MISS
        [found] = self._store.find_at_once([key])
        if found is None:
            self._lookups[key] = self._store.start_exists([key])
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def _memory(self, job: Any) -> list[tuple[int, int, None]]:
        size = self._block_size_bytes
        return [(self._start + int(number) * size, size, None) for number in job.chunk_ids]

    def submit_store(self, job_metadata: Any) -> None:
        """Starts writing a job's blocks. Blocks that are stored already are skipped."""
        self._submit(job_metadata, self._store.start_set, is_load=False)

    def submit_load(self, job_metadata: Any) -> None:
        """Starts reading a job's blocks."""
        self._submit(job_metadata, self._store.start_get, is_load=True)

    def _submit(self, job: Any, start: Callable[..., BlockCall], is_load: bool) -> None:
        keys = list(job.keys)
        call = start(keys, self._memory(job))
        self._jobs[job.job_id] = _Job(keys, call, time.monotonic(), is_load, job.req_context)

    def get_finished_jobs(self) -> Iterable[Any]:
        """The jobs that have ended since the last call."""
        ended = [number for number, job in self._jobs.items() if job.call.done()]
        return [self._result(number, self._jobs.pop(number)) for number in ended]

    def _result(self, number: int, job: _Job) -> Any:
        good = job.call.result()
        some = [key for key, is_good in zip(job.keys, good, strict=True) if is_good]
        if job.is_load and not all(good):
            failed = job.request.get_state(_Failed) or _Failed()
            job.request.set_state(failed)
            failed.update(set(job.keys).difference(some))
        if some and self._emits_events and not job.is_load:
            event = OffloadingEvent(some, self.medium, removed=False, locality=self.locality)
            self._events.append(event)
        return JobResult(
            job_id=number,
            success=all(good),
            successful_keys=tuple(some) if job.is_load and some and not all(good) else None,
            transfer_time=time.monotonic() - job.started,
            transfer_bytes=len(some) * self._block_size_bytes,
        )

    def take_events(self) -> Iterable[Any]:
        """An event for each job that stored blocks since the last call."""
        events, self._events = self._events, []
        return events

    def touch(self, keys: Iterable[Any], req_context: Any) -> None:
        """Notes that blocks which the primary tier has are in use: they leave the store later."""
        self._store.start_touch(list(keys))

    def has_pending_work(self) -> bool:
        """Whether jobs are in progress."""
        return bool(self._jobs)

    def on_new_request(self, req_context: Any) -> Any:
        """No preference."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        """Forgets lookups that were not repeated; their records are in memory now."""
        self._lookups = {key: call for key, call in self._lookups.items() if not call.done()}

    def drain_jobs(self) -> None:
        """Waits until no job is in progress, at most for the store's timeout."""
        for job in self._jobs.values():
            job.call.result()

    def shutdown(self) -> None:
        """Waits for jobs in progress, and closes the store."""
        self.drain_jobs()
        self._store.close()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        """The counters that `get_stats` increases, for each root."""
        return {
            _PREFIX + name: OffloadingCounterMetadata(documentation=text, labelnames=tuple(labels))
            for name, (text, *labels) in COUNTERS.items()
        }

    def get_stats(self) -> Any:
        """The counts since the last call."""
        stats = OffloadingConnectorStats()
        for (name, *labels), count in self._store.increments().items():
            stats.increase_counter(_PREFIX + name, count, tuple(labels))
        return None if stats.is_empty() else stats
