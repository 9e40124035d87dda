"""Models in files of safetensors and of `torch.save`: loaded in one call.

>>> from forebay.safetensors import load_file
>>> weights = load_file("model.safetensors")
>>> weights["embedding"].shape
torch.Size([512, 64])

The names, arguments and results are those of ``safetensors.torch`` and ``safetensors``, so that a
program changes one import: tensors are loaded to the host unless `device` says otherwise.
`forebay.load_file` loads to the GPU. Nothing here needs torch, unless the tensors are torch's.
"""

from __future__ import annotations

from .._errors import publish
from ._drop_in import load, load_file, save, save_file
from ._frameworks import NotTensors
from ._header import FormatError, MissingTensor
from ._into import load_into
from ._iterate import iterate
from ._module import load_model, save_model
from ._open import Slice, safe_open
from ._patched import patched
from ._save import SharedMemory
from ._sharded import save_sharded

__all__ = [
    "FormatError",
    "MissingTensor",
    "NotTensors",
    "SharedMemory",
    "Slice",
    "iterate",
    "load",
    "load_file",
    "load_into",
    "load_model",
    "patched",
    "safe_open",
    "save",
    "save_file",
    "save_model",
    "save_sharded",
]

publish(__name__, vars())
