"""Loads models into tensors that exist."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from .._errors import RequestError, shortened
from ._iterate import iterated
from ._ranks import ranks
from ._slices import Shard, bounds

if TYPE_CHECKING:
    from .._forebay import Engine
    from ._files import Paths
    from ._frameworks import Framework
    from ._header import Stored
    from ._slices import Index


def load_into(
    tensors: Mapping[str, Any],
    filename: Paths,
    *,
    rename: Callable[[str], str | None] | None = None,
    shard: Shard = None,
    rank: int | None = None,
    world_size: int | None = None,
    group: Any = None,
    window: str | int = "1GiB",
    engine: Engine | None = None,
) -> None:
    """Gives tensors of torch the values that a model has in its files.

    The tensors keep their memory and type; values of another type are converted. All names and
    shapes are checked before the first value changes. If a read fails later, a note of the error
    says how many tensors have their new values. Each tensor has its old or its new ones, unless
    its copy failed.

    Args:
        tensors: the tensors by name, such as ``model.state_dict()``, all on one device. Tensors of
            the files that it lacks are not read.
        filename: as for `load_file`.
        rename: returns the name in `tensors` for a name in the files, or ``None``.
        shard: as for `load_file`. Tensors have the shapes of their parts.
        rank: as for `load_file`.
        world_size: as for `load_file`.
        group: as for `load_file`.
        window: bytes of additional memory on a GPU, as for `iterate`.
        engine: as for `load_file`.

    Raises:
        KeyError: a tensor is in no file.
        forebay.RequestError: a tensor has another shape than in its file, or two tensors of the
            files have one name in `tensors`.
        ValueError: the tensors are on several devices.
        As `load_file` does.
    """
    devices = {tensor.device for tensor in tensors.values()}
    if len(devices) > 1:
        all_ = ", ".join(sorted(map(str, devices)))
        raise ValueError(f"the tensors of one load are on several devices: {all_}")
    name_of = rename or (lambda name: name)
    done = 0

    def planned(kind: Framework, found: list[tuple[Stored, Index]]) -> None:
        left = set(tensors)
        for stored, index in found:
            name = name_of(stored.name) or ""
            if name not in left:
                raise _refused(stored, f"another tensor of the files is `{shortened(name)}` too")
            left.remove(name)
            shape = kind.shape(stored, bounds(index, stored)[1])
            wanted = tuple(tensors[name].shape)
            if shape != wanted:
                raise _refused(stored, f"it has the shape {shape}, and that in memory {wanted}")
        if left:
            raise KeyError(f"no tensor `{shortened(min(left))}` in the files of the model")

    together = ranks(rank, world_size, group, shard)
    device = devices.pop() if devices else "cpu"
    wanted = lambda name: name_of(name) in tensors
    found = iterated(
        together, filename, wanted, device, window=window, shard=shard, engine=engine,
        planned=planned,
    )  # fmt: skip
    import torch  # type: ignore[import-not-found,unused-ignore]

    try:
        with torch.no_grad(), closing(found):
            for name, tensor in found:
                tensors[name_of(name) or ""].copy_(tensor)
                done += 1
    except BaseException as error:
        error.add_note(f"{done} of {len(tensors)} tensors have their new values")
        raise


def _refused(stored: Stored, why: str) -> RequestError:
    text = f"cannot load the tensor `{shortened(stored.name)}`: {why}"
    return RequestError(errno.EINVAL, text, stored.path)


load_into.__module__ = "forebay"
