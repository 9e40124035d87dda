"""Keeps SGLang's hierarchical KV cache on drives: HiCache's ``dynamic`` storage backend.

``docs/kv-cache.md`` of the repository has the configuration.
"""

# mypy: disable-error-code="import-not-found,unused-ignore,misc"
from __future__ import annotations

import hashlib
import json
import os
import time
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
        weights = _weights()
        is_known = weights["revision"] or weights["weight_version"] not in (None, "default")
        unknown = "" if is_known else "a revision of the weights"
        self._rank = f"\n{storage_config.tp_rank}/{storage_config.tp_size}"
        # The KV of MLA is the same on all ranks of tensor parallelism: they share one copy.
        self._shares_kv = bool(storage_config.is_mla_model)
        self._store = from_config("SGLang", config, about, unknown)
        # The store has hashes of keys, not keys: `clear` touches a file that is part of all keys.
        whose = json.dumps([config.get("namespace"), about], sort_keys=True)
        name = f"cleared-{hashlib.sha256(whose.encode()).hexdigest()[:16]}"
        self._cleared = [os.path.join(root["path"], name) for root in self._store.statistics()]
        self.registered_pools: dict[Any, Any] = {}

    def _keys(self, keys: list[str], pool: Any = None) -> list[str]:
        """The store's keys for pages of a pool."""
        is_kv = pool is None or pool in ("__default__", PoolName.KV)
        memory = getattr(self, "mem_pool_host", None) if is_kv else self.registered_pools.get(pool)
        about = [getattr(memory, name, None) for name in ("dtype", "layout", "page_size")]
        about += [*_weights().values(), *map(_changed, self._cleared)]
        end = "\n".join(["" if is_kv else f".{pool}", *map(str, about)])
        is_shared = self._shares_kv and is_kv

        def named(key: str) -> str:
            is_own = not is_shared or key.endswith(f".{PoolName.MAMBA.value}")
            return key + end + self._rank if is_own else key + end

        return [named(key) for key in keys]

    def _pages(self, pool: Any, indices: Any, count: int) -> list[list[tuple[int, int, None]]]:
        """The memory of each page: its pieces in the host pool."""
        places, sizes = pool.get_page_buffer_meta(indices)
        each = len(places) // count if count else 0
        pieces = [(place, size, None) for place, size in zip(places, sizes, strict=True)]
        return [pieces[at * each : (at + 1) * each] for at in range(count)]

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Reads pages into the host pool; for each, whether it was there."""
        pages = self._pages(self.mem_pool_host, host_indices, len(keys))
        return self._store.get(self._keys(keys), pages)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        """Writes pages from the host pool; for each, whether it is stored now."""
        pages = self._pages(self.mem_pool_host, host_indices, len(keys))
        return self._store.set(self._keys(keys), pages)

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
            results[transfer.name] = move(self._keys(keys, transfer.name), pages)
        return results

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Reads a page into a tensor; ``None`` if it is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> Any:
        """Reads pages into tensors; ``None`` for each that is not there."""
        found = self._store.get(self._keys(keys), target_locations)
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
        return all(self._store.set(self._keys(keys), memory))

    def exists(self, key: str) -> bool:
        """Whether a page is stored."""
        return self._store.exists(self._keys([key]))[0]

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many pages from the first on are stored."""
        return _leading(self._store.exists(self._keys(keys)))

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
            there = self._store.exists(self._keys(keys[:count], transfer.name))
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
        """Hides the pages of all servers with this model's name and ``namespace`` until eviction."""
        flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        for path in self._cleared:
            file = os.open(path, flags, 0o600)
            os.utime(file)
            os.close(file)
        return True

    def get_stats(self) -> None:
        """Updates the metrics of Prometheus; SGLang calls it if its own are enabled."""
        self._store.update_metrics()

    def close(self) -> None:
        """Closes the store."""
        self._store.close()


def _leading(there: list[bool]) -> int:
    return next((number for number, is_there in enumerate(there) if not is_there), len(there))


def _weights() -> dict[str, Any]:
    """Identifies the weights; an update in place may change their version."""
    draft = "speculative_draft_model_"
    names = ("model_path", "revision", f"{draft}path", f"{draft}revision")
    try:
        from sglang.srt.runtime_context import get_server_args, get_serving

        args, version = get_server_args(), get_serving().weight_version
    except (ImportError, ValueError):  # not in a server
        args = version = None
    return {name: getattr(args, name, None) for name in names} | {"weight_version": version}


def _changed(path: str) -> int | None:
    """When pages were cleared. Differs at each call if the drive fails, so that none is found."""
    try:
        return os.stat(path, follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return None
    except OSError:
        return time.time_ns()
