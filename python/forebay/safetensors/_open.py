"""A file whose tensors are requested one by one, as with `safetensors.safe_open`."""

from __future__ import annotations

import os
import threading
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from .. import _process
from .._errors import close, local, shortened, shown
from .._memory import fitting
from .._sizes import size_of
from .._types import Path
from ._frameworks import framework as chosen
from ._header import FormatError, MissingTensor
from ._host import HostFile, alone
from ._iterate import PARTS, Ahead
from ._load import checked
from ._plan import Part, naming, open_one, parts, region
from ._slices import Index, is_range

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from .._forebay import Engine
    from .._types import Device
    from ._header import Stored


class safe_open:  # noqa: N801, the name that programs import
    """Opens a file of safetensors or of `torch.save`.

    Tensors that are requested in the order of the file (`offset_keys`) are read ahead, from the
    second one on. On a GPU, those that are read together share memory, which stays as long as one
    of them is kept: to keep some, `clone` them. On the host they are the file's pages, as with
    `load_file`.

    Args:
        filename: the file.
        framework: ``torch`` (or ``pt``) or ``numpy`` (or ``np``).
        device: the device of the tensors.
        backend: ``mmap``, or ``pread``: tensors on the host have memory of their own.
        window: bytes of memory for tensors that are read ahead on a GPU; on the host a fifth of it is
            read ahead into the page cache.
        engine: by default that of the process.
    """

    def __init__(
        self,
        filename: Path,
        framework: str = "torch",
        device: Device = "cpu",
        *,
        backend: str = "mmap",
        window: str | int = "512MiB",
        engine: Engine | None = None,
    ) -> None:
        is_mapped = checked(backend) == "mmap"
        self._framework = chosen(framework, "cpu" if device is None else device)
        self._engine = engine or _process.default_engine()
        self._window = size_of(window, "window")
        if self._framework.is_on_host and not is_mapped:
            self._window = fitting(self._window)
        opened = open_one(self._engine, local(filename))
        self._opened, self._file, self._header = opened, opened.file, opened.header
        self._host: HostFile | None = None
        if self._framework.is_on_host and is_mapped:
            self._host = HostFile(self._engine, self._framework, opened, self._window // PARTS)
        # Guards the fields below: several threads may call `get_tensor`.
        self._lock = threading.Lock()
        self._ahead: Ahead | None = None
        # The tensors of the part that was taken last, and the place of the next one.
        self._ready: dict[str, Any] = {}
        self._behind = 0
        self._last = -2

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            self._stop()
        close(self._file.close, value)

    def keys(self) -> list[str]:
        """The names of the tensors, sorted."""
        return sorted(self._header.tensors)

    def offset_keys(self) -> list[str]:
        """The names of the tensors in the order of their bytes."""
        return list(self._header.tensors)

    def metadata(self) -> dict[str, str] | None:
        """The strings under ``__metadata__``."""
        return self._header.metadata()

    def get_tensor(self, name: str) -> Any:
        """A tensor by its name."""
        place = self._place(name)
        if self._host is not None:
            return self._host.tensor(self._header.tensors.at(place))
        with self._lock:
            return self._next(name, place)

    def _next(self, name: str, place: int) -> Any:
        follows, self._last = place == self._last + 1, place
        if name in self._ready:
            return self._ready.pop(name)
        if self._ahead is None or place != self._behind:
            self._stop()
            stored = self._header.tensors.at(place)
            if not follows or not self._is_known(stored):
                return self._alone(stored, ...)
            later = map(self._header.tensors.at, range(place, len(self._header.tensors)))
            wanted = ((self._file, tensor, ...) for tensor in takewhile(self._is_known, later))
            each = parts(wanted, max(self._window // PARTS, 1))
            self._ahead = Ahead(self._engine, self._framework, each, self._window)
            self._behind = place
        try:
            taken = self._ahead.take()
            self._opened.stamp.check()
        except BaseException:
            self._stop()
            raise
        assert taken is not None, "the tensor is after the last one"
        self._ready = dict(taken[0].made(self._framework, taken[1]))
        self._behind += len(self._ready)
        return self._ready.pop(name)

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, on a GPU read by one call."""
        each = map(self._header.tensors.at, range(len(self._header.tensors)))
        if self._host is not None:
            return {stored.name: self._host.tensor(stored) for stored in each}
        with self._lock:
            self._stop()
        part = Part()
        for stored in each:
            part.put(self._file, region(stored, ...))
        memory = self._framework.memory(part.nbytes)
        with naming([part]):
            part.requests.start(self._engine, memory).result()
        self._opened.stamp.check()
        return dict(part.made(self._framework, memory))

    def get_slice(self, name: str) -> Slice:
        """A tensor whose parts are read by ``[...]``."""
        return Slice(self, self._header.tensors.at(self._place(name)))

    def _place(self, name: str) -> int:
        place = self._header.tensors.place(name)
        if place is None:
            text = f"no tensor `{shortened(name)}` in `{shown(self._header.path)}`"
            raise MissingTensor(text)
        return place

    def _is_known(self, stored: Stored) -> bool:
        """Whether the framework has the type and the shape of a tensor."""
        try:
            self._framework.check(stored)
        except FormatError:
            return False
        return True

    def _alone(self, stored: Stored, index: Index) -> Any:
        """A tensor, or a part of it, without others."""
        if self._host is not None:
            return self._host.tensor(stored, index)
        return alone(self._engine, self._framework, self._opened, stored, index)

    def _stop(self) -> None:
        """Stops reading ahead."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead, self._ready = None, {}


class Slice:
    """A tensor of a file, of which ``[...]`` reads only a part.

    The whole tensor is read if the index has more than whole numbers, slices without a step, and
    ``...``.
    """

    def __init__(self, opened: safe_open, stored: Stored) -> None:
        self._opened = opened
        self._stored = stored

    def get_shape(self) -> list[int]:
        """The shape of the tensor."""
        return list(self._stored.shape)

    def get_dtype(self) -> str:
        """The type of the tensor, by the format's name, such as ``BF16``."""
        return self._stored.dtype

    def __getitem__(self, index: Any) -> Any:
        if is_range(index):
            return self._opened._alone(self._stored, index)
        return self._opened._alone(self._stored, ...)[index]
