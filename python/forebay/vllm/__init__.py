"""Loads models for vLLM: ``vllm serve MODEL --load-format forebay``.

vLLM finds `register` by the entry point of this package. Options are described in
``docs/models.md``.
"""

from __future__ import annotations

import functools

__all__ = ["register"]


@functools.cache
def register() -> None:
    """Makes ``forebay`` a load format of vLLM. vLLM calls it in each of its processes."""
    from vllm.model_executor.model_loader import (  # type: ignore[import-not-found,unused-ignore]
        register_model_loader,
    )

    from ._loader import Loader

    register_model_loader("forebay")(Loader)
