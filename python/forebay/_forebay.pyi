"""The compiled part of ``forebay``."""

from collections.abc import Callable, Generator, Iterable
from typing import Any, Self, final

from typing_extensions import disjoint_base

from ._statistics import Statistics
from ._types import Device, Memory, Numbers, Path, Requests, Route, Stream, Sync

__all__ = [
    "Buffer",
    "Engine",
    "File",
    "LayerStream",
    "ManyResult",
    "ManyTransfer",
    "TakenLayer",
    "Transfer",
    "reader_count",
    "run_command",
]

def reader_count() -> int: ...
def run_command(arguments: list[str], program: list[str]) -> int: ...

@final
class Buffer:
    """Memory of an engine, on a GPU or pinned on the host."""

    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def tobytes(self) -> bytes: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...

@disjoint_base
class Engine:
    """Moves bytes between files and memory."""

    def __new__(cls, **options: Any) -> Self: ...
    def open(self, file: Path | int, mode: str = "r") -> File: ...
    def allocate(self, nbytes: int, device: Device = None) -> Buffer: ...
    def read(self, path: Path, device: Device = ...) -> Buffer: ...
    def gpu(self, name: Device) -> dict[str, Any] | None: ...
    def notes(self) -> list[str]: ...
    def statistics(self) -> Statistics: ...
    def options(self) -> dict[str, Any]: ...
    def read_many(
        self,
        requests: Requests | None = None,
        *,
        files: Any = None,
        file_of: Numbers = None,
        offsets: Numbers = None,
        lengths: Numbers = None,
        target: Memory = None,
        at: Numbers = None,
        addresses: Numbers = None,
        device: Device = None,
        exact: bool = True,
        check: bool = True,
        stream: Stream = ...,
        route: Route | None = None,
        urgent: bool = False,
    ) -> ManyResult: ...
    def write_many(
        self,
        requests: Requests | None = None,
        *,
        files: Any = None,
        file_of: Numbers = None,
        offsets: Numbers = None,
        lengths: Numbers = None,
        source: Memory = None,
        at: Numbers = None,
        addresses: Numbers = None,
        device: Device = None,
        sync: Sync | None = None,
        check: bool = True,
        stream: Stream = ...,
        urgent: bool = False,
    ) -> ManyResult: ...
    def start_read_many(
        self,
        requests: Requests | None = None,
        *,
        files: Any = None,
        file_of: Numbers = None,
        offsets: Numbers = None,
        lengths: Numbers = None,
        target: Memory = None,
        at: Numbers = None,
        addresses: Numbers = None,
        device: Device = None,
        exact: bool = True,
        check: bool = True,
        stream: Stream = ...,
        route: Route | None = None,
        urgent: bool = False,
    ) -> ManyTransfer: ...
    def start_write_many(
        self,
        requests: Requests | None = None,
        *,
        files: Any = None,
        file_of: Numbers = None,
        offsets: Numbers = None,
        lengths: Numbers = None,
        source: Memory = None,
        at: Numbers = None,
        addresses: Numbers = None,
        device: Device = None,
        sync: Sync | None = None,
        check: bool = True,
        stream: Stream = ...,
        urgent: bool = False,
    ) -> ManyTransfer: ...

@disjoint_base
class File:
    """A file of an engine."""

    @property
    def name(self) -> Any: ...
    @property
    def mode(self) -> str: ...
    @property
    def engine(self) -> Engine: ...
    @property
    def closed(self) -> bool: ...
    @property
    def size(self) -> int: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: object = None, value: BaseException | None = None, _trace: object = None
    ) -> None: ...
    def read_into(
        self,
        target: Memory,
        offset: int = 0,
        *,
        size: int | None = None,
        exact: bool = True,
        stream: Stream = ...,
        route: Route | None = None,
        urgent: bool = False,
    ) -> int: ...
    def write_from(
        self,
        source: Memory,
        offset: int = 0,
        *,
        size: int | None = None,
        sync: Sync | None = None,
        stream: Stream = ...,
        route: Route | None = None,
        urgent: bool = False,
    ) -> int: ...
    def start_read_into(
        self,
        target: Memory,
        offset: int = 0,
        *,
        size: int | None = None,
        exact: bool = True,
        stream: Stream = ...,
        route: Route | None = None,
        urgent: bool = False,
    ) -> Transfer: ...
    def start_write_from(
        self,
        source: Memory,
        offset: int = 0,
        *,
        size: int | None = None,
        sync: Sync | None = None,
        stream: Stream = ...,
        route: Route | None = None,
        urgent: bool = False,
    ) -> Transfer: ...
    def readv(
        self,
        requests: Iterable[tuple[int, int, Memory]],
        *,
        device: Device = None,
        exact: bool = True,
        check: bool = True,
        stream: Stream = ...,
        route: Route | None = None,
        urgent: bool = False,
    ) -> ManyResult: ...
    def writev(
        self,
        requests: Iterable[tuple[int, int, Memory]],
        *,
        device: Device = None,
        sync: Sync | None = None,
        check: bool = True,
        stream: Stream = ...,
        urgent: bool = False,
    ) -> ManyResult: ...
    def start_readv(
        self,
        requests: Iterable[tuple[int, int, Memory]],
        *,
        device: Device = None,
        exact: bool = True,
        check: bool = True,
        stream: Stream = ...,
        route: Route | None = None,
        urgent: bool = False,
    ) -> ManyTransfer: ...
    def start_writev(
        self,
        requests: Iterable[tuple[int, int, Memory]],
        *,
        device: Device = None,
        sync: Sync | None = None,
        check: bool = True,
        stream: Stream = ...,
        urgent: bool = False,
    ) -> ManyTransfer: ...
    def sync(self, *, data_only: bool = False) -> None: ...
    def preallocate(self, offset: int, length: int) -> bool: ...
    def residency(self, offset: int = 0, length: int | None = None) -> dict[str, Any]: ...
    def evict(self) -> dict[str, Any]: ...
    def about(self) -> dict[str, Any]: ...

@final
class ManyResult:
    """The results of many reads or writes."""

    @property
    def bytes(self) -> int: ...
    @property
    def counts(self) -> list[int | None]: ...
    @property
    def errors(self) -> dict[int, Exception]: ...
    def report(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> int: ...

@final
class Transfer:
    """A transfer in progress."""

    def result(self, timeout: float | None = None) -> int: ...
    def exception(self, timeout: float | None = None) -> Exception | None: ...
    def done(self) -> bool: ...
    def running(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> bool: ...
    def progress(self) -> tuple[int, int]: ...
    def add_done_callback(self, callback: Callable[[Transfer], object]) -> None: ...
    def __await__(self) -> Generator[Any, None, int]: ...
    def report(self) -> dict[str, Any]: ...

@final
class ManyTransfer:
    """Many reads or writes in progress."""

    def result(self, timeout: float | None = None) -> ManyResult: ...
    def exception(self, timeout: float | None = None) -> Exception | None: ...
    def done(self) -> bool: ...
    def running(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> bool: ...
    def progress(self) -> tuple[int, int]: ...
    def add_done_callback(self, callback: Callable[[ManyTransfer], object]) -> None: ...
    def __await__(self) -> Generator[Any, None, ManyResult]: ...
    def report(self) -> dict[str, Any]: ...

@final
class LayerStream:
    """Loads layers to a GPU, each while the one before it is computed."""

    @staticmethod
    def group(
        engine: Engine,
        devices: list[Device],
        layers: list[tuple[str, list[tuple[File, int, int]]]],
        *,
        order: str | list[int],
        passes: int | None,
        gpu_budget: int | None,
        host_budget: int,
        mapped_budget: int | None,
        check: bool,
    ) -> list[LayerStream]: ...
    def take(self, compute: Stream) -> TakenLayer | None: ...
    def prefetch(self, layers: list[int]) -> None: ...
    def flush(self) -> None: ...
    def trace(self) -> bytes: ...
    def close(self) -> list[str]: ...
    def begin_pass(self) -> None: ...
    def rewind(self) -> None: ...
    def pass_len(self) -> int | None: ...
    @property
    def device(self) -> str: ...
    @property
    def slices(self) -> int: ...
    @property
    def buffers(self) -> int: ...
    def mapped(self) -> tuple[int, str | None]: ...
    @property
    def tiers(self) -> list[str]: ...
    def prediction(self) -> dict[str, Any] | None: ...
    def statistics(self) -> dict[str, Any]: ...

@final
class TakenLayer:
    """A layer on the GPU, or a slice of one."""

    @property
    def position(self) -> int: ...
    @property
    def layer(self) -> int: ...
    @property
    def slice(self) -> int: ...
    @property
    def first_part(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def places(self) -> list[tuple[int, int]]: ...
    def memory(self) -> Buffer: ...
    def part(self, part: int) -> Buffer: ...
    def keep(self) -> None: ...
    def write_back(self, compute: Stream = ...) -> None: ...
    def release(self, compute: Stream = ...) -> None: ...
