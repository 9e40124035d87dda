"""Forebay itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import forebay

from ..model import Model
from .side import STATES, Loaded, Side, is_there, torch, views


class Forebay(Side):
    """All tensors' bytes in one read; without torch to memory of its own, on the host."""

    name = "forebay"
    package = "forebay"
    needs_torch = False

    def __init__(
        self, setting: str = "default", *, states: tuple[str, ...] = STATES, **limits: Any
    ) -> None:
        super().__init__(setting, states=states)
        self._limits = limits
        self._engine: forebay.Engine | None = None

    def _started(self) -> forebay.Engine:
        """The engine, made with the first load, whose time that is."""
        if self._engine is None:
            own = forebay.Engine(**self._limits) if self._limits else None
            self._engine = own or forebay.default_engine()
        return self._engine

    def load(self, model: Model, path: Path, device: str) -> Loaded:
        engine = self._started()
        with engine.open(path) as file:
            if not is_there("torch"):
                buffer = engine.allocate(model.nbytes)
                file.read_into(buffer, model.begin)
                return Loaded(_slices(memoryview(buffer), model), model.nbytes, buffer)
            flat = torch().empty(model.nbytes, dtype=torch().uint8, device=device)
            file.read_into(flat, model.begin)
        return Loaded(views(flat, model), model.nbytes)

    def tell(self, model: Model, path: Path, device: str) -> dict[str, Any]:
        engine = self._started()
        target: Any = engine.allocate(model.nbytes)
        if device != "cpu":
            target = torch().empty(model.nbytes, dtype=torch().uint8, device=device)
        with engine.open(path) as file:
            transfer = file.start_read_into(target, model.begin)
            transfer.result()
        return {"notes": engine.notes(), **transfer.report()}


def _slices(whole: memoryview, model: Model) -> dict[str, Any]:
    return {
        tensor.name: whole[tensor.begin - model.begin : tensor.end - model.begin]
        for tensor in model.tensors
    }
