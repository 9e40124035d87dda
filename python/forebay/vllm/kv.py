"""Keeps vLLM's KV cache on drives: a secondary tier, by configuration alone.

``docs/kv-cache.md`` of the repository has the configuration.
"""

# mypy: disable-error-code="import-not-found,unused-ignore,misc"
from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import (
        OffloadingConnectorStats,
    )
    from vllm.v1.kv_offload.base import (
        LookupResult,
        Medium,
        OffloadingCounterMetadata,
    )
    from vllm.v1.kv_offload.file_mapper import FileMapper
    from vllm.v1.kv_offload.tiering.base import (
        JobResult,
        RequestOffloadingContext,
        SecondaryTierManager,
    )
except ImportError as error:
    raise ImportError(
        f"forebay.vllm.kv needs a vLLM with secondary tiers (0.32 is tested): {error}"
    ) from error

from ..blocks import from_config

if TYPE_CHECKING:
    from ..blocks import BlockCall

__all__ = ["ForebayTier"]

_PREFIX = "vllm:kv_offload_forebay_"
_COUNTERS = {
    "hits": "Blocks read from the store.",
    "missed": "Requested blocks that were not read, by reason.",
    "stored": "Blocks written to the store.",
    "evicted": "Blocks that left to make room.",
    "dropped": "Blocks not written, by reason.",
    "bytes_read": "Bytes read from the store.",
    "bytes_written": "Bytes written to the store.",
}
_BY_REASON = ("missed", "dropped")


@dataclass
class _Job:
    keys: list[Any]
    call: BlockCall
    started: float
    is_load: bool


class ForebayTier(SecondaryTierManager):
    """Blocks of the primary tier's memory in a store of blocks.

    Args:
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
        **config: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        # Blocks of another model, type, layout or rank do not match.
        mapper = FileMapper.from_offloading_spec(
            root_dir="",
            offloading_spec=offloading_spec,
            blocks_per_file=offloading_spec.blocks_per_chunk,
            parallel_agnostic=True,
        )
        about = {**mapper.get_run_config(), "rank": mapper.rank}
        self._store = from_config("vLLM", config, json.dumps(about, sort_keys=True))
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(primary_kv_view))
        self._jobs: dict[int, _Job] = {}
        self._lookups: dict[Any, BlockCall] = {}
        self._counted: dict[tuple[str, ...], int] = {}

    def lookup(self, key: Any, req_context: Any) -> Any:
        """HIT, MISS, or RETRY while the index is read from the drive."""
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
        keys = list(job_metadata.keys)
        call = self._store.start_set(keys, self._memory(job_metadata))
        self._jobs[job_metadata.job_id] = _Job(keys, call, time.monotonic(), is_load=False)

    def submit_load(self, job_metadata: Any) -> None:
        """Starts reading a job's blocks."""
        keys = list(job_metadata.keys)
        call = self._store.start_get(keys, self._memory(job_metadata))
        self._jobs[job_metadata.job_id] = _Job(keys, call, time.monotonic(), is_load=True)

    def get_finished_jobs(self) -> Iterable[Any]:
        """The jobs that have ended since the last call."""
        ended = [number for number, job in self._jobs.items() if job.call.done()]
        return [self._result(number, self._jobs.pop(number)) for number in ended]

    def _result(self, number: int, job: _Job) -> Any:
        good = job.call.result()
        some = [key for key, is_good in zip(job.keys, good, strict=True) if is_good]
        return JobResult(
            job_id=number,
            success=all(good),
            successful_keys=tuple(some) if job.is_load and some and not all(good) else None,
            transfer_time=time.monotonic() - job.started,
            transfer_bytes=len(some) * self._block_size_bytes,
        )

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
            _PREFIX + name: OffloadingCounterMetadata(
                documentation=text,
                labelnames=("root", "reason") if name in _BY_REASON else ("root",),
            )
            for name, text in _COUNTERS.items()
        }

    def get_stats(self) -> Any:
        """The counts since the last call."""
        stats = OffloadingConnectorStats()
        for root in self._store.statistics():
            path = str(root["path"])
            counts: dict[tuple[str, ...], int] = {
                (name, path): root[name] for name in _COUNTERS if name not in _BY_REASON
            }
            for name in _BY_REASON:
                counts |= {(name, path, why): count for why, count in root[name].items()}
            for at, count in counts.items():
                if grown := count - self._counted.get(at, 0):
                    stats.increase_counter(_PREFIX + at[0], grown, at[1:])
            self._counted |= counts
        return None if stats.is_empty() else stats
