"""Loads models for SGLang: ``--model-loader-extra-config '{"forebay": true}'``.

SGLang finds `register` by the entry point of this package. Options are described in
``docs/serve.md`` of the repository.
"""

# mypy: disable-error-code="import-not-found,unused-ignore"
from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from .._forebay import Engine
from .._serving import checked, exchanged, together, watched, without

__all__ = ["register"]

_KEY = "forebay"
_LOADER = "sglang.srt.model_loader.loader"
_READERS = ("safetensors_weights_iterator", "buffered_multi_thread_safetensors_weights_iterator")


TESTED = "0.5.23"
"""The version of SGLang that was tested."""


@functools.cache
def register() -> None:
    """Makes SGLang's own loader read safetensors files by Forebay if its options say so.

    With a version of SGLang that lacks or moved a name that is needed, it warns, and SGLang works
    without Forebay.
    """
    try:
        from sglang.srt.model_loader import loader
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        _ = loader._validate_default_loader_extra_config
        _ = loader.DefaultModelLoader._get_weights_iterator
        _ = [getattr(loader, name) for name in _READERS]
    except Exception as error:  # whatever it is, SGLang must start
        without("SGLang", TESTED, error)
        return
    check = f"{_LOADER}._validate_default_loader_extra_config"
    HookRegistry.register(check, _check, HookType.BEFORE)
    weights = f"{_LOADER}.DefaultModelLoader._get_weights_iterator"
    HookRegistry.register(weights, _weights, HookType.AROUND)


def _options(extra: dict[str, Any] | None) -> dict[str, Any] | None:
    """The options under ``forebay``; ``None`` if SGLang loads by itself."""
    given = (extra or {}).get(_KEY, False)
    if given is False:
        return None
    if given is not True and not isinstance(given, dict):
        raise ValueError(
            f"`{_KEY}` of `--model-loader-extra-config` takes `true` or an object of options"
        )
    return {} if given is True else checked(given)


def _check(*, extra_config: dict[str, Any], **others: Any) -> tuple[tuple[()], dict[str, Any]]:
    """Runs before SGLang checks its options, and removes ours, which it would refuse."""
    _options(extra_config)
    rest = {key: value for key, value in extra_config.items() if key != _KEY}
    return (), {"extra_config": rest, **others}


def _weights(original: Any, loader: Any, *args: Any, **others: Any) -> Any:
    """Runs around the method that chooses files and reads them."""
    import torch
    from sglang.srt.model_loader import loader as module

    # Updates from disk have an empty configuration.
    extra = loader.load_config.model_loader_extra_config
    extra = extra or getattr(module.get_model(), "model_loader_extra_config", None)
    options = _options(json.loads(extra) if isinstance(extra, str) else extra)
    if options is None:
        return original(loader, *args, **others)
    from ..safetensors import iterate

    def read(files: list[str], *_: Any, **__: Any) -> Iterator[tuple[str, Any]]:
        # The engine ends with the load: a server that sleeps has none of its threads and memory.
        device = "cuda" if torch.cuda.is_available() else "cpu"
        chosen = {"device": device, "engine": Engine(), **options}
        group = together(sorted(files), chosen["device"])
        return watched(iterate(files, **group, **chosen), files)

    with exchanged(module, read, *_READERS):
        return original(loader, *args, **others)
