"""The loader that vLLM makes for ``--load-format forebay``."""

# mypy: disable-error-code="import-not-found,misc,unused-ignore"
from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

from vllm.model_executor.model_loader import default_loader, weight_utils
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight
from vllm.platforms import current_platform

from .._forebay import Engine
from .._serving import checked, exchanged, together, watched
from ..safetensors import iterate

# Without these names this loader cannot work: vLLM then does not get it.
_ = default_loader.safetensors_weights_iterator
_ = default_loader.DefaultModelLoader._get_weights_iterator

_OF_VLLM = ("enable_weights_track",)
"""Options that are passed to vLLM's own loader."""


class Loader(default_loader.DefaultModelLoader):
    """vLLM's own loader, with safetensors files read by Forebay.

    vLLM finds and filters the files, and loads those of other formats itself.
    """

    def __init__(self, load_config: Any) -> None:
        given = dict(load_config.model_loader_extra_config)
        own = copy.copy(load_config)
        own.load_format = "auto"
        own.model_loader_extra_config = {key: given.pop(key) for key in _OF_VLLM if key in given}
        self._options = checked(given)
        super().__init__(own)

    def _get_weights_iterator(self, source: Any) -> Iterator[tuple[str, Any]]:
        # The method chooses and filters files, which changes from version to version. Only the
        # function that it calls to read them is replaced.
        with exchanged(default_loader, self._read, "safetensors_weights_iterator"):
            weights: Iterator[tuple[str, Any]] = super()._get_weights_iterator(source)
        return weights

    def _read(
        self,
        files: list[str],
        progress: bool,
        strategy: str | None = None,
        local_expert_ids: set[int] | None = None,
        **others: Any,
    ) -> Iterator[tuple[str, Any]]:
        """The tensors of files, without experts that belong to other ranks."""
        if strategy == "torchao":  # its tensors consist of several in the file
            yield from weight_utils.safetensors_weights_iterator(
                files, progress, strategy, local_expert_ids, **others
            )
            return
        files = sorted(files)
        # It ends with the load: a server that sleeps has no threads, rings and pinned memory of it.
        options = {"device": current_platform.device_type, "engine": Engine(), **self._options}
        tables = _engram()
        is_table = tables.search if tables else lambda _: None

        def is_wanted(name: str, ids: set[int] | None) -> bool:
            return not is_table(name) and not should_skip_weight(name, ids)

        def read() -> Iterator[tuple[str, Any]]:
            # Ranks with different experts have the other tensors in common.
            of_all = None if local_expert_ids is None else set[int]()
            group = together(files, options["device"])
            yield from iterate(files, lambda name: is_wanted(name, of_all), **group, **options)
            if of_all is None:
                return
            own = lambda name: is_wanted(name, local_expert_ids) and not is_wanted(name, of_all)
            yield from iterate(files, own, **options)

        yield from watched(read(), files) if progress else read()
        if tables:
            options["device"] = "cpu"
            yield from iterate(files, lambda name: bool(is_table(name)), **options)


def _engram() -> re.Pattern[str] | None:
    """Matches the tables of Engram, if vLLM keeps those on the host; else ``None``."""
    from vllm.config import get_current_vllm_config_or_none

    config = getattr(get_current_vllm_config_or_none(), "engram_config", None)
    if config is None or not config.cpu_offload:
        return None
    return getattr(weight_utils, "_ENGRAM_WEIGHT_RE", None)
