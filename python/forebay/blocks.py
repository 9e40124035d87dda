"""Keeps KV blocks on drives: a bounded store that processes share.

>>> from forebay.blocks import BlockStore
>>> store = BlockStore("/nvme/kv", capacity="500GiB", namespace="llama-8b bf16")
>>> block = bytearray(65536)
>>> store.set(["a prefix"], [block])
[True]
>>> store.get(["a prefix", "another"], [bytearray(65536), bytearray(65536)])
[True, False]

A key is any text or bytes. A block is up to 64 MiB of memory on the host or on a GPU, in one piece
or, as a list, in several. It is there whole, with a right checksum, or it is a miss: after a
process is killed, the power is cut, a drive returns wrong bytes or is full.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias

from ._errors import RequestError, local, shown
from ._forebay import BlockCall, Blocks, Engine
from ._process import default_engine
from ._sizes import size_of
from ._types import Memory, Path

__all__ = ["BlockCall", "BlockStore"]

Key: TypeAlias = str | bytes
"""The name of a block, of any length."""

Block: TypeAlias = Memory | list[Memory]
"""A block's memory: in one piece, or in several, whose bytes follow each other."""

_OPTIONS = (
    "capacity",
    "keep_free",
    "memory",
    "namespace",
    "page_cache",
    "policy",
    "threads",
    "timeout",
    "ttl",
    "unwritten",
)

COUNTERS = {
    "hits": ("Blocks read from the store.", "root"),
    "missed": ("Requested blocks that were not read.", "root", "reason"),
    "stored": ("Blocks written to the store.", "root"),
    "present": ("Blocks that were stored already.", "root"),
    "dropped": ("Blocks that were not written.", "root", "reason"),
    "evicted": ("Blocks evicted.", "root"),
    "bytes_read": ("Bytes read from the store.", "root"),
    "bytes_written": ("Bytes written to the store.", "root"),
}
"""The counters of a store: text and labels."""


class BlockStore:
    """Blocks under keys, on one or several drives.

    Several stores may share a root, in one process or in several: each finds what the others have
    stored, and a block is stored once.

    Args:
        roots: a folder, a list of folders, or a dictionary of folders and their capacities. Folders
            are best on a drive each; a block is on one of them. A missing folder is made, but not
            its parent.
        capacity: bytes, or a text such as ``"500GiB"``, that the blocks of each root and their
            index may take. All stores that share a root name the same. A new capacity resizes a
            root that is not open: a smaller one removes the blocks beyond it, with a warning.
        namespace: blocks of another namespace are not found: name the model, its types, the page
            size and the share of this rank.
        policy: ``"lru"`` or ``"lfu"``, the eviction policy.
        ttl: seconds after which a block is not found any more.
        page_cache: whether writes go through the page cache, which keeps new blocks in memory.
            Without it they are faster on most drives, and take no memory.
        keep_free: bytes of each file system that stay free; by default a twentieth, at most 16 GiB.
        timeout: seconds after which a call ends, whatever its drive does.
        unwritten: bytes of each root in the page cache that may wait for the drive.
        memory: bytes of memory through which blocks pass, for each root and direction.
        threads: threads that read, and threads that write, for each root.
        engine: the engine that moves the bytes.

    Raises:
        RequestError: a root cannot be used like this.
        OSError: the file system refused.
    """

    def __init__(
        self,
        roots: Path | Iterable[Path] | Mapping[Any, int | str],
        capacity: int | str | None = None,
        *,
        namespace: Key = b"",
        policy: Literal["lru", "lfu"] = "lru",
        ttl: float | None = None,
        page_cache: bool = False,
        keep_free: int | str | None = None,
        timeout: float = 30.0,
        unwritten: int | str = "256MiB",
        memory: int | str = "256MiB",
        threads: int = 8,
        engine: Engine | None = None,
    ) -> None:
        free = None if keep_free is None else _size("keep_free", keep_free, zero=True)
        self._blocks = Blocks(
            engine or default_engine(),
            [(path, size, free) for path, size in _roots(roots, capacity)],
            namespace=namespace.encode() if isinstance(namespace, str) else namespace,
            policy=policy,
            ttl=ttl,
            page_cache=page_cache,
            unwritten=_size("unwritten", unwritten, zero=True),
            memory=_size("memory", memory),
            timeout=timeout,
            threads=threads,
        )
        self._counted: dict[tuple[str, ...], int] = {}

    def get(self, keys: Iterable[Key], memory: Iterable[Block]) -> list[bool]:
        """Reads blocks into memory; for each, whether it was there.

        A block is found only if its length is that of its memory. The memory of a block that was
        not found may have changed.
        """
        return self._blocks.get(keys, memory, here=True).result()

    def set(self, keys: Iterable[Key], memory: Iterable[Block]) -> list[bool]:
        """Writes blocks from memory; for each, whether it is stored now.

        A block that is stored already is not written again. A stored block survives the end of the
        process; `sync` protects it from a power cut. Blocks that cannot be written in time, or do
        not fit, are dropped: `start_set` and `BlockCall.reasons` give the reason.
        """
        return self._blocks.set(keys, memory).result()

    def exists(self, keys: Iterable[Key]) -> list[bool]:
        """Whether each block is stored."""
        keys = keys if isinstance(keys, str | bytes) else list(keys)
        found = self._blocks.find_at_once(keys)
        if None in found:
            return self._blocks.exists(keys).result()
        return [is_stored is True for is_stored in found]

    def touch(self, keys: Iterable[Key]) -> list[bool]:
        """Notes that blocks are in use, so that they leave later; for each, whether it is stored."""
        return self._blocks.touch(keys).result()

    def delete(self, keys: Iterable[Key]) -> list[bool]:
        """Removes blocks; for each, whether it was there."""
        return self._blocks.delete(keys).result()

    def start_get(
        self, keys: Iterable[Key], memory: Iterable[Block], number: int | None = None
    ) -> BlockCall:
        """Starts reading blocks. The call is a future, and can be awaited.

        With a `number`, the call is also one of those that `take_ended` returns.
        """
        return self._blocks.get(keys, memory, number)

    def start_set(
        self, keys: Iterable[Key], memory: Iterable[Block], number: int | None = None
    ) -> BlockCall:
        """Queues writes of blocks. Their memory is used until the call has ended.

        The queue has no bound but `timeout`: it holds no copies.
        """
        return self._blocks.set(keys, memory, number)

    def start_exists(self, keys: Iterable[Key], number: int | None = None) -> BlockCall:
        """Starts looking for blocks."""
        return self._blocks.exists(keys, number)

    def start_touch(self, keys: Iterable[Key], number: int | None = None) -> BlockCall:
        """Starts noting that blocks are in use."""
        return self._blocks.touch(keys, number)

    def start_delete(self, keys: Iterable[Key], number: int | None = None) -> BlockCall:
        """Starts removing blocks."""
        return self._blocks.delete(keys, number)

    def event_fd(self) -> int:
        """A descriptor for `select` and its like: readable while `take_ended` has calls."""
        return self._blocks.event_fd()

    def take_ended(self) -> list[tuple[int, list[bool]]]:
        """The calls with a number that have ended since the last time, with their results."""
        return self._blocks.take_ended()

    def find_at_once(self, keys: Iterable[Key]) -> list[bool | None]:
        """Whether each block is stored; ``None`` where a drive would have to be read."""
        return self._blocks.find_at_once(keys)

    def sync(self) -> None:
        """Makes all stored blocks durable, of all processes: they survive a power loss."""
        self._blocks.sync()

    def clear(self) -> None:
        """Removes all blocks, of all namespaces."""
        self._blocks.clear()

    def usage(self) -> tuple[int, int]:
        """Number of blocks, and bytes that they take on the drives. Reads the whole index."""
        return self._blocks.usage()

    def statistics(self) -> list[dict[str, Any]]:
        """What each root has done for this store.

        ``hits`` and ``missed`` are blocks that were and were not read, ``stored`` and ``dropped``
        those that were and were not written; ``missed`` and ``dropped`` by reason. ``queued``,
        ``load`` and ``store`` are times in microseconds.
        """
        return self._blocks.statistics()

    def increments(self) -> dict[tuple[str, ...], int]:
        """Increments of the `COUNTERS` since the last call, by name and labels."""
        counts: dict[tuple[str, ...], int] = {}
        for root in self.statistics():
            for name, (_, *labels) in COUNTERS.items():
                value, at = root[name], (name, str(root["path"]))
                if "reason" in labels:
                    counts |= {(*at, reason): count for reason, count in value.items()}
                else:
                    counts[at] = value
        before, self._counted = self._counted, counts
        return {at: more for at, count in counts.items() if (more := count - before.get(at, 0))}

    def update_metrics(self) -> None:
        """Updates the counters ``forebay_kv_…`` of ``prometheus_client``, if that is installed.

        Call it periodically, or before the program's metrics are collected.
        """
        for (name, *labels), count in self.increments().items():
            if counter := _counter(name):
                counter.labels(*labels).inc(count)

    def close(self) -> None:
        """Closes the store. All calls end; afterwards nothing touches their memory."""
        self._blocks.close()

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


@functools.cache
def _counter(name: str) -> Any:
    try:
        from prometheus_client import Counter  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    text, *labels = COUNTERS[name]
    return Counter(f"forebay_kv_{name}", text, labels)


def _size(name: str, value: int | str, zero: bool = False) -> int:
    if zero and value in (0, "0"):
        return 0
    return size_of(value, name)


def _roots(
    roots: Path | Iterable[Path] | Mapping[Any, int | str], capacity: int | str | None
) -> list[tuple[str, int]]:
    if isinstance(roots, Mapping):
        if capacity is not None:
            raise RequestError("`capacity` is given for each root; leave it out")
        return [(local(path), _size("capacity", size)) for path, size in roots.items()]
    paths = list(roots) if isinstance(roots, Iterable) and not isinstance(roots, str | bytes) else [roots]
    if capacity is None:
        raise RequestError('give `capacity`, the most bytes for the blocks, such as "500GiB"')
    return [(local(path), _size("capacity", capacity)) for path in paths]


def from_config(
    server: str, config: Mapping[str, Any], about: Mapping[str, Any], unknown: str = ""
) -> BlockStore:
    """The store of a server's configuration: ``root`` and the arguments of `BlockStore`.

    Blocks are found by servers with the same ``namespace`` and the same `about`. Without a
    ``namespace``, warns of what `about` lacks.

    Raises:
        ValueError: a key is missing or unknown.
    """
    given = dict(config)
    root = given.pop("root", None)
    if not root:
        raise ValueError(f'forebay for {server}: give "root", the folder for the blocks')
    if wrong := sorted(set(given) - set(_OPTIONS)):
        known = ", ".join(f"`{name}`" for name in ("root", *_OPTIONS))
        raise ValueError(f"forebay for {server}: unknown option `{shown(wrong[0])}`; use {known}")
    own = given.pop("namespace", "")
    if unknown and not own:
        text = (
            f"forebay for {server}: {server} does not pass {unknown}: servers that differ in it "
            "share blocks; set `namespace` to a name of it"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    namespace = f"{server}\n{own}\n{json.dumps(about, sort_keys=True)}"
    return BlockStore(root, **given, namespace=namespace)
