"""Counts the bytes and the time of this package's calls.

Nothing is counted without a monitor. Each monitor counts the calls that begin during its life.
"""

from __future__ import annotations

import json
import os
import threading
import time
import uuid
import weakref
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from . import _memory

if TYPE_CHECKING:
    from .._forebay import Transfer

_BACKENDS = ("POSIX", "GDS", "MMAP", "REMOTE_HTTP", "REMOTE_HDFS")

_COUNTERS = (
    "remote_size_probes",
    "remote_size_probing_ns",
    "http_connections",
    "http_dns_ns",
    "http_tcp_ns",
    "http_tls_ns",
    "http_retries",
    "http_retry_backoff_ns",
)
"""KvikIO's counters of remote files, all 0 here."""


class BackendTotals(TypedDict):
    """The counts of one backend."""

    num_ops: int
    bytes_transferred: int
    total_duration_ns: int
    num_errors: int


def _no_backends() -> dict[str, BackendTotals]:
    return {
        name: BackendTotals(num_ops=0, bytes_transferred=0, total_duration_ns=0, num_errors=0)
        for name in _BACKENDS
    }


@dataclass(frozen=True)
class Summary:
    """The counts of a monitor at the time of `SummaryMonitor.get`. All times are nanoseconds."""

    start_unix_ns: int
    end_unix_ns: int
    num_ops: int = 0
    """Calls that have ended."""
    num_reads: int = 0
    num_writes: int = 0
    bytes_requested: int = 0
    bytes_transferred: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    num_errors: int = 0
    busy_ns: int = 0
    """Time with at least one call in progress."""
    total_duration_ns: int = 0
    """The sum of the times of all calls."""
    by_backend: dict[str, BackendTotals] = field(default_factory=_no_backends, hash=False)
    counters: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(_COUNTERS, 0), hash=False
    )
    span: str | None = field(default=None, repr=False)
    """The monitor and its last reset; `None` for the difference of two summaries."""

    @property
    def wall_ns(self) -> int:
        """Time between start and end."""
        return self.end_unix_ns - self.start_unix_ns

    @property
    def busy_bytes_per_sec(self) -> float:
        """Bytes per second of busy time."""
        return self.bytes_transferred * 1e9 / self.busy_ns if self.busy_ns else 0.0

    @property
    def busy_fraction(self) -> float:
        """The share of busy time, from 0 to 1."""
        return min(1.0, self.busy_ns / self.wall_ns) if self.wall_ns else 0.0

    @property
    def mean_duration_ns(self) -> int:
        """The mean time of a call."""
        return self.total_duration_ns // self.num_ops if self.num_ops else 0

    def since(self, previous: Summary) -> Summary:
        """The counts since an earlier summary of the same monitor.

        Raises:
            ValueError: `previous` is another summary, or the monitor was reset since.
        """
        if self.span is None or previous.span != self.span or previous.num_ops > self.num_ops:
            text = "`previous` must be an earlier summary of this monitor, since its last reset"
            raise ValueError(text)
        now, before = asdict(self), asdict(previous)
        backends: dict[str, Any] = {
            name: {key: totals[key] - before["by_backend"][name][key] for key in totals}
            for name, totals in now["by_backend"].items()
        }
        counted = {
            key: now[key] - before[key]
            for key in now
            if isinstance(now[key], int) and not key.endswith("unix_ns")
        }
        return Summary(previous.end_unix_ns, self.end_unix_ns, by_backend=backends, **counted)

    def _known(self) -> dict[str, Any]:
        known = asdict(self)
        del known["span"]
        for name in ("wall_ns", "busy_bytes_per_sec", "busy_fraction", "mean_duration_ns"):
            known[name] = getattr(self, name)
        return known

    def to_json(self) -> str:
        """The summary as a JSON object."""
        return json.dumps(self._known())

    def serialize(self) -> bytes:
        """The summary as bytes, for `deserialize`."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def deserialize(data: bytes) -> Summary:
        """The summary in bytes of `serialize`.

        Raises:
            ValueError: the bytes are something else.
        """
        try:
            return Summary(**json.loads(data))
        except (TypeError, ValueError):
            raise ValueError("the bytes are not a summary of this version") from None

    def report(self, all_rows: bool = False) -> str:
        """The summary as text, one field per line; with `all_rows` also idle backends."""
        rows = [
            ("wall time", f"{self.wall_ns / 1e9:.6f} s"),
            ("busy time", f"{self.busy_ns / 1e9:.6f} s ({100 * self.busy_fraction:.2f} %)"),
            ("busy bandwidth", f"{self.busy_bytes_per_sec / 1e6:.2f} MB/s"),
            ("operations", f"{self.num_ops} ({self.num_reads} read, {self.num_writes} written)"),
            ("mean duration", f"{self.mean_duration_ns / 1e3:.2f} us"),
            ("bytes", f"{self.bytes_transferred} of {self.bytes_requested} requested"),
            ("bytes read", str(self.bytes_read)),
            ("bytes written", str(self.bytes_written)),
            ("errors", str(self.num_errors)),
        ]
        for name, totals in self.by_backend.items():
            if totals["num_ops"] or all_rows:
                text = f"{totals['bytes_transferred']} bytes in {totals['num_ops']} calls"
                rows.append((f"backend {name}", f"{text}, {totals['num_errors']} failed"))
        return "I/O summary\n" + "".join(f"  {name:<20} {value}\n" for name, value in rows)

    def __str__(self) -> str:
        return self.report()


class Operation:
    """A call that is being counted, by the monitors that existed when it began."""

    def __init__(
        self, monitors: list[tuple[SummaryMonitor, str]], way: str, backend: str, size: int
    ) -> None:
        self._monitors, self._lock = monitors, threading.Lock()
        self._way, self._backend, self._size = way, backend, size
        self._begun = time.monotonic_ns()

    def ended(self, transfer: Transfer) -> None:
        """Counts a transfer that has ended."""
        if transfer.exception() is not None:
            self.end(0, failed=True)
        else:
            self.end(transfer.result())

    def end(self, moved: int, failed: bool = False) -> None:
        """Counts it, once."""
        with self._lock:
            monitors, self._monitors = self._monitors, []
        took = time.monotonic_ns() - self._begun
        for monitor, span in monitors:
            monitor._end(span, self._way, self._backend, (self._size, moved), took, failed)


_lock = threading.Lock()
_monitors: weakref.WeakSet[SummaryMonitor] = weakref.WeakSet()


def operation(way: str, memory: Any, size: int | None, backend: str = "POSIX") -> Operation | None:
    """Begins to count a call; `None` if there is no monitor."""
    if not _monitors:
        return None
    with _lock:
        there = list(_monitors)
    requested = _memory.size_of(memory) if size is None else size
    begun = [(monitor, span) for monitor in there if (span := monitor._begin()) is not None]
    return Operation(begun, way, backend, requested or 0) if begun else None


class SummaryMonitor:
    """Counts this process's calls of this package, until it is stopped."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped: int | None = None
        self._restart()
        with _lock:
            _monitors.add(self)

    def _restart(self) -> None:
        self._span = uuid.uuid4().hex
        self._wall, self._clock = time.time_ns(), time.monotonic_ns()
        self._under_way, self._busy_since, self._busy = 0, 0, 0
        self._totals: dict[str, int] = {}
        self._backends = _no_backends()

    def _begin(self) -> str | None:
        with self._lock:
            if self._stopped is not None:
                return None
            if self._under_way == 0:
                self._busy_since = time.monotonic_ns()
            self._under_way += 1
            return self._span

    def _end(
        self, span: str, way: str, backend: str, sizes: tuple[int, int], took: int, failed: bool
    ) -> None:
        with self._lock:
            # Calls that a reset or a stop interrupted are not counted.
            if span != self._span or self._stopped is not None:
                return
            self._under_way -= 1
            if self._under_way == 0:
                self._busy += time.monotonic_ns() - self._busy_since
            requested, moved = sizes
            moved_by, calls_by = f"bytes_{_PAST[way]}", f"num_{way}s"
            for name, number in [
                ("num_ops", 1), (calls_by, 1), ("bytes_requested", requested),
                ("bytes_transferred", moved), (moved_by, moved), ("num_errors", int(failed)),
                ("total_duration_ns", took),
            ]:  # fmt: skip
                self._totals[name] = self._totals.get(name, 0) + number
            totals = self._backends[backend]
            totals["num_ops"] += 1
            totals["bytes_transferred"] += moved
            totals["total_duration_ns"] += took
            totals["num_errors"] += int(failed)

    def get(self) -> Summary:
        """The counts so far."""
        with self._lock:
            now = time.monotonic_ns() if self._stopped is None else self._stopped
            busy = self._busy + (now - self._busy_since if self._under_way else 0)
            backends = {name: BackendTotals(**totals) for name, totals in self._backends.items()}
            counted: dict[str, Any] = {**self._totals, "busy_ns": busy}
            end = self._wall + now - self._clock
            return Summary(self._wall, end, by_backend=backends, span=self._span, **counted)

    def reset(self) -> None:
        """Sets all counts to 0."""
        with self._lock:
            self._restart()
            if self._stopped is not None:
                self._stopped = self._clock

    def since(self, previous: Summary) -> Summary:
        """The counts since an earlier summary.

        Raises:
            ValueError: `previous` is not a summary of this monitor since its last reset.
        """
        return self.get().since(previous)

    def stop(self) -> None:
        """Stops counting permanently."""
        with _lock:
            _monitors.discard(self)
        with self._lock:
            if self._stopped is None:
                self._stopped = time.monotonic_ns()

    def __enter__(self) -> SummaryMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


_PAST = {"read": "read", "write": "written"}


def _in_child() -> None:
    # A forked child counts its own calls, and threads of the parent may have held the locks.
    global _lock
    _lock = threading.Lock()
    for monitor in _monitors:
        monitor._lock = threading.Lock()
        monitor._restart()


os.register_at_fork(after_in_child=_in_child)
