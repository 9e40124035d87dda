"""Checkpoints of `torch.distributed.checkpoint`, read and written by an engine.

>>> import torch.distributed.checkpoint as dcp
>>> from forebay.torch.dcp import Reader, Writer
>>> dcp.save(state, storage_writer=Writer("checkpoint"))
>>> dcp.load(state, storage_reader=Reader("checkpoint"))

The files are those of torch: each side reads what the other wrote.
"""

from __future__ import annotations

from ._reader import Reader
from ._writer import Writer

__all__ = ["Reader", "Writer"]
