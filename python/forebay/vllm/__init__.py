"""Loads models for vLLM: ``vllm serve MODEL --load-format forebay``.

vLLM finds `register` by the entry point of this package. Options are described in
``docs/serve.md`` of the repository.
"""

from __future__ import annotations

import functools

from .._serving import without

__all__ = ["register"]


TESTED = "0.32"
"""The version of vLLM that was tested."""


@functools.cache
def register() -> None:
    """Makes ``forebay`` a load format of vLLM. vLLM calls it in each of its processes.

    With a version of vLLM that lacks or moved a name that is needed, it warns, and vLLM works
    without this format.
    """
    try:
        from vllm.model_executor.model_loader import (  # type: ignore[import-not-found,unused-ignore]
            register_model_loader,
        )

        from ._loader import Loader
    except Exception as error:  # whatever it is, vLLM must start
        without("vLLM", TESTED, error)
        return
    register_model_loader("forebay")(Loader)
