"""Settings of NVIDIA's cuFile driver, which the engine does not use.

They can be read and set, for programs that do, and have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIXED: dict[str, Any] = {
    "is_gds_available": False,
    "major_version": 0,
    "minor_version": 0,
    "allow_compat_mode": True,
    "per_buffer_cache_size": 0,
}

_values: dict[str, Any] = {
    "poll_mode": False,
    "poll_thresh_size": 4,
    "max_device_cache_size": 131072,
    "max_pinned_memory_size": 4294967292,
}


class ConfigContextManager:
    """Settings that stay, or that are restored at the end of a ``with`` block."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        for name in config:
            if name in _FIXED:
                raise KeyError(f"`{name}` is read-only")
            get(name)
        self._before = {name: _values[name] for name in config}
        _values.update(config)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        _values.update(self._before)


def set(*config: Any) -> ConfigContextManager:
    """Sets one by its name and value, or several by a dictionary: permanently, or for a ``with``.

    Raises:
        KeyError: there is no such setting, or it is read-only.
        ValueError: other arguments.
    """
    match config:
        case (dict() as several,):
            return ConfigContextManager(several)
        case (str() as name, value):
            return ConfigContextManager({name: value})
    raise ValueError("call `set({name: value, ...})` or `set(name, value)`")


def get(config_name: str) -> Any:
    """The value of a setting."""
    known = {**_FIXED, **_values}
    if config_name not in known:
        raise KeyError(f"unknown setting `{config_name}`: the settings are {', '.join(known)}")
    return known[config_name]


def libcufile_version() -> tuple[int, int]:
    """``(0, 0)``: no libcufile is loaded."""
    return 0, 0


def driver_open() -> None:
    """Does nothing: there is no driver to open."""


def driver_close() -> None:
    """Does nothing, like `driver_open`."""


def initialize() -> None:
    """Does nothing, like `driver_open`."""
