"""Tensors and files: loads, saves, records in random order, checkpoints.

>>> import forebay.torch
>>> weights = forebay.torch.load("weights.bin", torch.bfloat16, (4096, 4096), "cuda")
>>> for batch in forebay.torch.RecordDataset(paths, (224, 224, 3), torch.uint8, batch_size=256):
...     train(batch)

Checkpoints are safetensors files. All other files hold the tensors' bytes and nothing else: no
pickles, no header. This part is imported on use, and needs torch.
"""

from __future__ import annotations

from .._errors import publish
from ._checkpoint import save_checkpoint
from ._layers import Layer, LayerStream, TensorAt
from ._records import RecordDataset
from ._tensors import load, load_into, save

__all__ = [
    "Layer",
    "LayerStream",
    "RecordDataset",
    "TensorAt",
    "load",
    "load_into",
    "save",
    "save_checkpoint",
]

publish(__name__, vars())
