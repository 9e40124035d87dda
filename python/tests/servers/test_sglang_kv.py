"""SGLang's hierarchical cache in a store of blocks, driven with SGLang's own host pools."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

storage = pytest.importorskip("sglang.srt.mem_cache.hicache_storage", reason="no SGLang")

import torch
from sglang.srt.mem_cache.storage import StorageBackendFactory

PAGE, LAYERS, HEADS, WIDTH = 4, 3, 2, 16


class Pool:
    """A host pool of keys and values as SGLang's, with the layout `page_first`."""

    page_size = PAGE
    layout = "page_first"
    dtype = torch.bfloat16

    def __init__(self, tokens: int) -> None:
        self.kv_buffer = torch.zeros(2, tokens, LAYERS, HEADS, WIDTH, dtype=self.dtype)

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        places = []
        for first in indices.tolist()[::PAGE]:
            places += [self.kv_buffer[half, first].data_ptr() for half in (0, 1)]
        size = PAGE * LAYERS * HEADS * WIDTH * self.dtype.itemsize
        return places, [size] * len(places)


def backend(
    root: Path, pool: Pool, rank: int = 0, mla: bool = False, model: str = "llama", **extra: Any
) -> Any:
    config = storage.HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=2,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=mla,
        enable_storage_metrics=False,
        is_page_first_layout=True,
        model_name=model,
        extra_config={
            "backend_name": "forebay",
            "module_path": "forebay.sglang.hicache",
            "class_name": "ForebayStorage",
            "interface_v1": 1,
            "root": str(root),
            "capacity": "64MiB",
            "keep_free": 0,
            "namespace": "main",
            **extra,
        },
    )
    made = StorageBackendFactory.create_backend("dynamic", config, pool)
    made.register_mem_pool_host(pool)
    return made


def filled(tokens: int) -> Pool:
    pool = Pool(tokens)
    pool.kv_buffer.normal_()
    return pool


def test_pages_go_to_and_from_the_host_pool(tmp_path: Path) -> None:
    pool = filled(16 * PAGE)
    before = pool.kv_buffer.clone()
    one = backend(tmp_path, pool)
    keys = [f"page {number}" for number in range(6)]
    indices = torch.arange(6 * PAGE)
    assert one.batch_exists(keys) == 0
    assert one.batch_set_v1(keys, indices) == [True] * 6
    assert one.batch_exists([*keys, "another"]) == 6
    assert one.exists(keys[0]) and not one.exists("another")

    found = one.batch_get_v1([*keys, "another"], torch.arange(8 * PAGE, 15 * PAGE))
    assert found == [True] * 6 + [False]
    assert torch.equal(pool.kv_buffer[:, 8 * PAGE : 14 * PAGE], before[:, : 6 * PAGE])
    assert torch.equal(pool.kv_buffer[:, : 8 * PAGE], before[:, : 8 * PAGE])


def test_clear_is_for_its_own_pages(tmp_path: Path) -> None:
    pool = filled(2 * PAGE)
    servers = [
        backend(tmp_path, pool, rank=0),
        backend(tmp_path, pool, rank=1),
        backend(tmp_path, pool, model="qwen"),
        backend(tmp_path, pool, namespace="v2"),
    ]
    for server in servers:
        assert server.batch_set_v1(["a", "b"], torch.arange(2 * PAGE)) == [True] * 2
    assert servers[0].clear() and servers[1].clear()  # as SGLang does, on each rank
    servers.append(backend(tmp_path, pool, rank=0))
    assert [server.batch_exists(["a", "b"]) for server in servers] == [0, 0, 2, 2, 0]
    assert servers[0].batch_set_v1(["a"], torch.arange(PAGE)) == [True]
    assert [server.batch_exists(["a", "b"]) for server in servers] == [1, 0, 2, 2, 1]


def test_other_weights_have_other_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt import runtime_context

    weights = SimpleNamespace(model_path="/models/one", revision="main")
    version = SimpleNamespace(weight_version="default")
    monkeypatch.setattr(runtime_context, "get_server_args", lambda: weights)
    monkeypatch.setattr(runtime_context, "get_serving", lambda: version)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        one = backend(tmp_path, Pool(PAGE), namespace="")
    page = torch.randn(100)
    assert one.set("a", page) and one.exists("a")
    version.weight_version = "step 2"  # an update in place
    assert not one.exists("a")
    weights.model_path, version.weight_version = "/models/two", "default"
    assert not backend(tmp_path, Pool(PAGE), namespace="").exists("a")
    weights.revision = None
    with pytest.warns(RuntimeWarning, match="does not pass a revision of the weights"):
        backend(tmp_path, Pool(PAGE), namespace="")


def test_counters_reach_prometheus(tmp_path: Path) -> None:
    from prometheus_client import REGISTRY

    one = backend(tmp_path, Pool(PAGE))
    page = torch.randn(100)
    one.batch_set(["a", "b"], [page, page])
    one.batch_get(["a", "c"], [page, page])
    for _ in range(2):
        assert one.get_stats() is None

    def count(name: str, **labels: str) -> float | None:
        return REGISTRY.get_sample_value(f"forebay_kv_{name}_total", {"root": str(tmp_path), **labels})

    assert count("stored") == 2 and count("hits") == 1 and count("bytes_read") == 400
    assert count("missed", reason="absent") == 1


def test_tensors_of_the_older_calls(tmp_path: Path) -> None:
    one = backend(tmp_path, Pool(PAGE))
    page = torch.randn(100, dtype=torch.bfloat16)
    assert one.set("a", page) and one.batch_set(["b", "c"], [page + 1, page + 2])
    target = torch.zeros_like(page)
    assert one.get("a", target) is target and torch.equal(target, page)
    assert one.batch_get(["b", "d"], [target, torch.zeros_like(page)])[1] is None
    assert torch.equal(target, page + 1)


def test_pools_of_their_own(tmp_path: Path) -> None:
    pool, state = filled(8 * PAGE), filled(8 * PAGE)
    one = backend(tmp_path, pool)
    kv, extra = storage.PoolName.KV, storage.PoolName.MAMBA
    one.register_mem_host_pool_v2(pool, kv)
    one.register_mem_host_pool_v2(state, extra)
    keys = ["a", "b", "c"]

    def transfer(name: Any, some: list[str], first: int, **how: Any) -> Any:
        indices = torch.arange(first * PAGE, (first + len(some)) * PAGE)
        return storage.PoolTransfer(name=name, keys=some, host_indices=indices, **how)

    done = one.batch_set_v2([transfer(kv, keys, 0), transfer(extra, keys[1:2], 0)])
    assert done == {kv: [True] * 3, extra: [True]}
    trailing = storage.PoolHitPolicy.TRAILING_PAGES
    hit = one.batch_exists_v2(keys, [transfer(extra, keys[:1], 0, hit_policy=trailing)])
    assert hit.kv_hit_pages == 2 and hit.restorable_prefix_pages == [2]
    assert one.batch_exists_v2(keys).kv_hit_pages == 3
    got = one.batch_get_v2([transfer(kv, keys, 4), transfer(extra, ["b", "x"], 4)])
    assert got == {kv: [True] * 3, extra: [True, False]}
    assert torch.equal(pool.kv_buffer[:, 4 * PAGE : 7 * PAGE], pool.kv_buffer[:, : 3 * PAGE])
    wrong = SimpleNamespace(name=kv, keys=keys, host_indices=torch.arange(3))
    assert one.batch_get_v2([wrong]) == {kv: [False] * 3}


@pytest.mark.parametrize("mla", [True, False])
def test_ranks_share_what_is_the_same(tmp_path: Path, mla: bool) -> None:
    first, second = filled(4 * PAGE), Pool(4 * PAGE)
    one = backend(tmp_path, first, rank=0, mla=mla)
    other = backend(tmp_path, second, rank=1, mla=mla)
    assert one.batch_set_v1(["a"], torch.arange(PAGE)) == [True]
    assert other.batch_get_v1(["a"], torch.arange(PAGE)) == [mla]
    assert torch.equal(first.kv_buffer[:, :PAGE], second.kv_buffer[:, :PAGE]) == mla


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown option `rot`"):
        backend(tmp_path, Pool(PAGE), rot="/x")
