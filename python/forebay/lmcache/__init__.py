"""Keeps LMCache's chunks on drives: an L2 adapter of the type ``native_plugin``.

``docs/kv-cache.md`` of the repository has the configuration. Nothing of LMCache is imported.
"""

from __future__ import annotations

import itertools
from typing import Any

from ..blocks import from_config

__all__ = ["Client"]

TESTED = "0.5.6"
"""The version of LMCache that was tested."""


class Client:
    """The connector that LMCache's `NativeConnectorL2Adapter` requires.

    Args:
        config: ``root``, ``capacity``, and the other arguments of `forebay.blocks.BlockStore`.
    """

    def __init__(self, **config: Any) -> None:
        unknown = "the revision of the weights and the type of the KV cache"
        self._store = from_config("LMCache", config, {}, unknown)
        self._numbers = itertools.count()
        self._sets: set[int] = set()

    def event_fd(self) -> int:
        """A descriptor that is readable while `drain_completions` has results."""
        return self._store.event_fd()

    def submit_batch_get(self, keys: list[str], views: list[memoryview]) -> int:
        """Starts reading; returns the number of the call."""
        number = next(self._numbers)
        self._store.start_get(keys, views, number)
        return number

    def submit_batch_set(self, keys: list[str], views: list[memoryview]) -> int:
        """Starts writing; returns the number of the call."""
        number = next(self._numbers)
        self._sets.add(number)
        self._store.start_set(keys, views, number)
        return number

    def submit_batch_exists(self, keys: list[str]) -> int:
        """Starts looking for keys; returns the number of the call."""
        number = next(self._numbers)
        self._store.start_exists(keys, number)
        return number

    def submit_batch_delete(self, keys: list[str]) -> int:
        """Starts removing; returns the number of the call."""
        number = next(self._numbers)
        self._store.start_delete(keys, number)
        return number

    def drain_completions(self) -> list[tuple[int, bool, str, list[bool]]]:
        """The calls that have ended: number, whether it ran, its error, a result for each key.

        A set has failed if one of its blocks was dropped.
        """
        self._store.update_metrics()
        return [self._result(number, ends) for number, ends in self._store.take_ended()]

    def _result(self, number: int, ends: list[bool]) -> tuple[int, bool, str, list[bool]]:
        if number not in self._sets:
            return number, True, "", ends
        self._sets.discard(number)
        dropped = ends.count(False)
        error = f"{dropped} of {len(ends)} blocks were dropped" if dropped else ""
        return number, not dropped, error, ends

    def statistics(self) -> list[dict[str, Any]]:
        """As `forebay.blocks.BlockStore.statistics`."""
        return self._store.statistics()

    def close(self) -> None:
        """Closes the store."""
        self._store.close()
