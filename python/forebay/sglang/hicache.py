"""Keeps SGLang's hierarchical KV cache on drives: HiCache's ``dynamic`` storage backend.

``docs/kv-cache.md`` of the repository has the configuration.
"""

# mypy: disable-error-code="import-not-found,unused-ignore,misc"
from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

try:
    from sglang.srt.mem_cache.hicache_storage import (
        HiCacheStorage,
        PoolHitPolicy,
        PoolName,
        PoolTransferResult,
    )
except ImportError as error:
    raise ImportError(
        f"forebay.sglang.hicache needs an SGLang with HiCache (0.5.23 is tested): {error}"
    ) from error

from ..blocks import from_config

__all__ = ["ForebayStorage"]

_OF_SGLANG = {
    "backend_name",
    "module_path",
    "class_name",
    "interface_v1",
    "tp_lcm_size",
    "prefetch_threshold",
    "prefetch_timeout_base",
    "prefetch_timeout_per_ki_token",
    "hicache_storage_pass_prefix_keys",
}
"""Keys of the extra configuration that SGLang reads itself."""


class ForebayStorage(HiCacheStorage):
    """Pages of the host pools in a store of blocks.

    The extra configuration has ``root``, ``capacity``, and the other arguments of
    `forebay.blocks.BlockStore`. With ``"interface_v1": 1`` pages go directly to and from the host
    pool.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = storage_config.extra_config or {}
        config = {key: value for key, value in extra.items() if key not in _OF_SGLANG}
        names = ("model_name", "model_path", "pp_rank", "pp_size", "attn_cp_rank", "attn_cp_size")
        about = {name: getattr(storage_config, name, None) for name in names}
        about |= {"layout": bool(storage_config.is_page_first_layout)}
        if getattr(storage_config, "dcp_size", 1) > 1:
            about |= {
                "dcp": (storage_config.dcp_rank, storage_config.dcp_size, storage_config.tp_size),
                "page": storage_config.logical_page_size,
            }
        self._rank = f"\n{storage_config.tp_rank}/{storage_config.tp_size}"
        # The KV of MLA is the same on all ranks of tensor parallelism: they share one copy.
        self._shares_kv = bool(storage_config.is_mla_model)
        self._store = from_config("SGLang", config, json.dumps(about, sort_keys=True))
        self.registered_pools: dict[Any, Any] = {}
        self._format = ""

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Names the pool of the KV, whose type and layout become part of the keys."""
        super().register_mem_pool_host(mem_pool_host)
        names = ("dtype", "layout", "page_size")
        about = [str(getattr(mem_pool_host, name, "")) for name in names]
        self._format = "\n" + " ".join(about)

    def _key(self, key: str, pool: Any = None) -> str:
        is_kv = pool is None or pool in ("__default__", PoolName.KV)
        of_all = self._shares_kv and is_kv and not key.endswith(f".{PoolName.MAMBA.value}")
        named = (key if is_kv else f"{key}.{pool}") + self._format
        return named if of_all else named + self._rank

    def _pages(self, pool: Any, indices: Any, count: int) -> list[list[tuple[int, int, None]]]:
        """The memory of each page: its pieces in the host pool."""
        places, sizes = pool.get_page_buffer_meta(indices)
        each = len(places) // count if count else 0
        pieces = [(place, size, None) for place, size in zip(places, sizes, strict=True)]
        return [pieces[at * each : (at + 1) * each] for at in range(count)]

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Reads pages into the host pool; for each, whether it was there."""
        pages = self._pages(self.mem_pool_host, host_indices, len(keys))
        return self._store.get([self._key(key) for key in keys], pages)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Writes pages from the host pool; for each, whether it is stored now."""
        pages = self._pages(self.mem_pool_host, host_indices, len(keys))
        return self._store.set([self._key(key) for key in keys], pages)

    def batch_get_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """Reads pages of several pools; for each pool and page, whether it was there."""
        return self._of_pools(transfers, self._store.get)

    def batch_set_v2(self, transfers: list[Any], extra_info: Any = None) -> dict[str, list[bool]]:
        """Writes pages of several pools; for each pool and page, whether it is stored now."""
        return self._of_pools(transfers, self._store.set)

    def _of_pools(
        self, transfers: list[Any], move: Callable[..., list[bool]]
    ) -> dict[str, list[bool]]:
        results = {}
        for transfer in transfers:
            pool, keys = self.registered_pools[transfer.name], transfer.keys or []
            indices = transfer.host_indices
            expected = len(keys) * (getattr(pool, "page_size", 1) or 1)
            if not keys or indices is None or indices.numel() != expected:
                results[transfer.name] = [False] * len(keys)
                continue
            pages = self._pages(pool, indices, len(keys))
            results[transfer.name] = move([self._key(it, transfer.name) for it in keys], pages)
        return results

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Reads a page into a tensor; ``None`` if it is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> Any:
        """Reads pages into tensors; ``None`` for each that is not there."""
        found = self._store.get([self._key(key) for key in keys], target_locations)
        return [
            target if is_there else None
            for target, is_there in zip(target_locations, found, strict=True)
        ]

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        """Writes a page from a tensor; whether it is stored now."""
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Writes pages from tensors; whether all are stored now."""
        memory = [value.contiguous() for value in values]
        return all(self._store.set([self._key(key) for key in keys], memory))

    def exists(self, key: str) -> bool:
        """Whether a page is stored."""
        return self._store.exists([self._key(key)])[0]

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages from the first on are stored."""
        return _leading(self._store.exists([self._key(key) for key in keys]))

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> Any:
        """How many pages from the first on can be restored, with what each pool needs for them."""
        count = self.batch_exists(keys)
        hits: dict[Any, int] = {PoolName.KV: count} if count else {}
        restorable = list(range(1, count + 1))
        for transfer in pool_transfers or []:
            if not restorable:
                break
            there = self._store.exists([self._key(key, transfer.name) for key in keys[:count]])
            if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                fit = set(range(1, _leading(there) + 1))
            elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                window = max(1, len(transfer.keys or [None]))
                fit = {
                    end for end in range(1, count + 1) if all(there[max(0, end - window) : end])
                }
            else:
                raise ValueError(f"forebay: unsupported pool hit policy {transfer.hit_policy}")
            if fit:
                hits[transfer.name] = max(fit)
            restorable = [end for end in restorable if end in fit]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    def clear(self) -> bool:
        """Removes all pages."""
        self._store.clear()
        return True

    def close(self) -> None:
        """Closes the store."""
        self._store.close()


def _leading(there: list[bool]) -> int:
    return next((number for number, is_there in enumerate(there) if not is_there), len(there))
