"""Other libraries, each called as its own documentation says."""

from __future__ import annotations

import ctypes
import importlib
from pathlib import Path
from typing import Any

from ..model import Model
from .side import STATES, Loaded, Side, torch, views


def _module(name: str) -> Any:
    return importlib.import_module(name)


class KvikIO(Side):
    """One parallel read of all tensors' bytes; the tensors are views of them."""

    name, package = "kvikio", "kvikio"
    modules = ("kvikio",)
    needs_gpu = True

    def load(self, model: Model, path: Path, device: str) -> Loaded:
        flat = torch().empty(model.nbytes, dtype=torch().uint8, device=device)
        with _module("kvikio").CuFile(path, "r") as file:
            got = file.pread(flat, model.nbytes, model.begin).get()
        if got != model.nbytes:
            raise RuntimeError(f"kvikio read {got} of {model.nbytes} bytes")
        return Loaded(views(flat, model), model.nbytes)


class InstantTensor(Side):
    """`safe_open`, whose tensors are the caller's to keep."""

    name, package = "instanttensor", "instanttensor"
    modules = ("instanttensor",)
    needs_gpu = True

    def load(self, model: Model, path: Path, device: str) -> Loaded:
        opened = _module("instanttensor").safe_open(str(path), framework="pt", device=device)
        with opened as file:
            return Loaded(dict(file.tensors()), model.nbytes)


class FastSafetensors(Side):
    """`SafeTensorsFileLoader` without GPUDirect Storage, its other settings as they are."""

    name, package = "fastsafetensors", "fastsafetensors"
    modules = ("fastsafetensors",)

    def available(self, device: str) -> str | None:
        reason = super().available(device)
        if reason is None and device != "cpu":
            try:
                ctypes.CDLL("libcudart.so")
            except OSError:
                return "it opens `libcudart.so`: link that name to the one of torch's packages"
        return reason

    def load(self, model: Model, path: Path, device: str) -> Loaded:
        library = _module("fastsafetensors")
        loader = library.SafeTensorsFileLoader(library.SingleGroup(), device, nogds=True)
        loader.add_filenames({0: [str(path)]})
        buffers = loader.copy_files_to_device()
        tensors = {name: buffers.get_tensor(name) for name in loader.get_keys()}
        return Loaded(tensors, model.nbytes, _Closing(buffers, loader))


class _Closing:
    """Closes things when it goes."""

    def __init__(self, *things: Any) -> None:
        self._things = things

    def __del__(self) -> None:
        for thing in self._things:
            thing.close()


class RunAI(Side):
    """`SafetensorsStreamer` to the host, each tensor moved on by torch."""

    name, package = "runai-model-streamer", "runai-model-streamer"
    modules = ("runai_model_streamer", "humanize")

    def load(self, model: Model, path: Path, device: str) -> Loaded:
        with _module("runai_model_streamer").SafetensorsStreamer() as streamer:
            streamer.stream_file(str(path))
            tensors = {name: tensor.to(device) for name, tensor in streamer.get_tensors()}
        return Loaded(tensors, model.nbytes)


class FlashPack(Side):
    """A file of its own format: converted apart, which costs the file's size once more."""

    name, package = "flashpack", "flashpack"
    modules = ("flashpack", "accelerate", "tqdm")

    def __init__(self) -> None:
        # To the host it would map the file and read nothing, which is no load.
        super().__init__(variables={"FLASHPACK_CPU_PARALLEL_READ": "1"})

    def prepare(self, model: Model, folder: Path) -> Path:
        with open(model.path, "rb") as file:
            file.seek(model.begin)
            data = bytearray(file.read(model.nbytes))
        flat = torch().frombuffer(data, dtype=torch().uint8)
        path = folder / "model.flashpack"
        _module("flashpack").pack_to_file(views(flat, model), str(path), None)
        return path

    def load(self, model: Model, path: Path, device: str) -> Loaded:
        library = _module("flashpack.deserialization")
        storage, about = library.read_flashpack_file(str(path), device)
        tensors = dict(library.iterate_from_flash_tensor(storage, about))
        return Loaded(tensors, model.nbytes, storage)


class Safetensors(Side):
    """`load_file`, or, where the version has it, `prefetch` by several threads."""

    name, package = "safetensors", "safetensors"
    modules = ("safetensors", "safetensors.torch")

    def __init__(
        self, setting: str = "default", *, states: tuple[str, ...] = STATES, threads: int = 0
    ) -> None:
        super().__init__(setting, states=states)
        self._threads = threads
        self.needs_gpu = threads > 0

    def available(self, device: str) -> str | None:
        reason = super().available(device)
        if reason is None and self._threads > 0:
            library = _module("safetensors")
            if not hasattr(library.safe_open, "prefetch"):
                return f"safetensors {library.__version__} has no `prefetch`"
        return reason

    def load(self, model: Model, path: Path, device: str) -> Loaded:
        if self._threads > 0:
            opened = _module("safetensors").safe_open(path, framework="pt", device=device)
            with opened as file, file.prefetch(threads=self._threads) as loader:
                return Loaded(dict(loader), model.nbytes)
        tensors = _module("safetensors.torch").load_file(path, device=device)
        if device == "cpu":
            # They are views of the mapped file until somebody looks at them, which is no load.
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        return Loaded(tensors, model.nbytes)
