"""Models in files of safetensors and of `torch.save`: loaded in one call.

>>> from forebay.safetensors import load_file
>>> weights = load_file("model.safetensors", device="cpu")
>>> weights["embedding"].shape
torch.Size([512, 64])

The names are those of ``safetensors.torch``, so that a program changes one import. Nothing here
needs torch, unless the tensors are torch's.
"""

from __future__ import annotations

from ._header import FormatError
from ._iterate import iterate
from ._load import Loaded, load_file
from ._module import load_model, save_model
from ._open import Slice, safe_open
from ._patched import patched
from ._save import save_file

__all__ = [
    "FormatError",
    "Loaded",
    "Slice",
    "iterate",
    "load_file",
    "load_model",
    "patched",
    "safe_open",
    "save_file",
    "save_model",
]
