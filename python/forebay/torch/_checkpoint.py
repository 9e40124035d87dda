"""Checkpoints: a file is replaced as a whole, or unchanged."""

from __future__ import annotations

from collections.abc import Mapping

import torch  # type: ignore[import-not-found,unused-ignore]

from .._types import Path
from ..safetensors._save import save_file


def save_checkpoint(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> int:
    """Replaces a safetensors file by one with these tensors, and returns how many bytes it has.

    This is `forebay.save_file` with the path first; `forebay.safetensors.load_file`
    loads the file.

    Args:
        path: the file.
        tensors: tensors by name, such as a module's `state_dict()`.
        metadata: strings that the file keeps, such as the number of the step.

    Raises:
        As `save_file` does.
    """
    return save_file(tensors, path, metadata)
