"""A file whose tensors are requested one by one, as with `safetensors.safe_open`."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from .. import _process
from .._errors import close, shortened, shown
from .._sizes import size_of
from .._types import Path
from ._files import ModelFile
from ._frameworks import framework as chosen
from ._header import of_safetensors
from ._iterate import PARTS, Ahead
from ._plan import Part, naming, open_one, parts
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
    second one on. Those that are read together share memory, which stays as long as one of them is
    kept: to keep some, `clone` them.

    Args:
        filename: the file.
        framework: ``torch`` (or ``pt``) or ``numpy`` (or ``np``).
        device: the device of the tensors.
        window: bytes of memory for tensors that are read ahead.
        engine: by default that of the process.
    """

    def __init__(
        self,
        filename: Path,
        framework: str = "torch",
        device: Device = "cpu",
        *,
        window: str | int = "512MiB",
        engine: Engine | None = None,
    ) -> None:
        self._framework = chosen(framework, device)
        self._engine = engine or _process.default_engine()
        self._window = size_of(window)
        opened = open_one(self._engine, ModelFile(os.fsdecode(filename)), lambda _: True)
        self._file, self._header = opened.file, opened.header
        self._places = {name: place for place, name in enumerate(self._header.tensors)}
        self._tensors = opened.tensors
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
        return sorted(self._places)

    def offset_keys(self) -> list[str]:
        """The names of the tensors in the order of their bytes."""
        return list(self._places)

    def metadata(self) -> dict[str, str] | None:
        """The strings under ``__metadata__``."""
        return self._header.metadata

    def get_tensor(self, name: str) -> Any:
        """A tensor by its name."""
        stored = self._stored(name)
        with self._lock:
            return self._next(name, stored)

    def _next(self, name: str, stored: Stored) -> Any:
        place, follows = self._places[name], self._places[name] == self._last + 1
        self._last = place
        if name in self._ready:
            return self._ready.pop(name)
        if self._ahead is None or place != self._behind:
            self._stop()
            if not follows:
                return self._alone(stored, ...)
            wanted = ((self._file, tensor, ...) for tensor in self._tensors[place:])
            each = parts(wanted, max(self._window // PARTS, 1))
            self._ahead = Ahead(self._engine, self._framework, each, self._window)
            self._behind = place
        try:
            taken = self._ahead.take()
        except BaseException:
            self._stop()
            raise
        assert taken is not None, "the tensor is after the last one"
        self._ready = dict(taken[0].made(self._framework, taken[1]))
        self._behind += len(self._ready)
        return self._ready.pop(name)

    def get_tensors(self) -> Mapping[str, Any]:
        """All tensors by name, read by one call."""
        with self._lock:
            self._stop()
        return self._read(self._tensors)

    def get_slice(self, name: str) -> Slice:
        """A tensor whose parts are read by ``[...]``."""
        return Slice(self, self._stored(name))

    def _stored(self, name: str) -> Stored:
        try:
            return self._header.tensors[name]
        except KeyError:
            text = f"no tensor `{shortened(name)}` in `{shown(self._header.path)}`"
            raise of_safetensors(KeyError)(text) from None

    def _alone(self, stored: Stored, index: Index) -> Any:
        """Reads a tensor, or a part of it, alone."""
        return self._read([stored], index)[stored.name]

    def _read(self, tensors: Iterable[Stored], index: Index = ...) -> dict[str, Any]:
        """Reads tensors, or the same part of each, by one call."""
        part = Part()
        for stored in tensors:
            part.add(self._file, stored, index)
        memory = self._framework.memory(part.nbytes)
        with naming([part]):
            part.requests.start(self._engine, memory).result()
        return dict(part.made(self._framework, memory))

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
