"""Settings of NVIDIA's cuFile driver, which the engine does not use.

They can be read and set, for programs that do, and have no effect.
"""

from __future__ import annotations

from typing import Any

from ._settings import ConfigContextManager, given

_FIXED = {
    "is_gds_available": False,
    "major_version": 0,
    "minor_version": 0,
    "allow_compat_mode": True,
    "per_buffer_cache_size": 0,
}

_KNOWN = {
    **_FIXED,
    "poll_mode": False,
    "poll_thresh_size": 4,
    "max_device_cache_size": 131072,
    "max_pinned_memory_size": 4294967292,
}

_values: dict[str, Any] = {}


def set(*config: Any) -> ConfigContextManager:
    """Sets one by its name and value, or several by a dictionary: permanently, or for a ``with``.

    Raises:
        KeyError: there is no such setting, or it is read-only.
        ValueError: other arguments.
    """
    for name in given(config):
        if name in _FIXED:
            raise KeyError(f"`{name}` is read-only")
        get(name)
    return ConfigContextManager(_values, given(config))


def get(config_name: str) -> Any:
    """The value of a setting."""
    if config_name not in _KNOWN:
        raise KeyError(f"unknown setting `{config_name}`: the settings are {', '.join(_KNOWN)}")
    return _values.get(config_name, _KNOWN[config_name])


def libcufile_version() -> tuple[int, int]:
    """``(0, 0)``: no libcufile is loaded."""
    return 0, 0


def driver_open() -> None:
    """Does nothing: there is no driver to open."""


driver_close = initialize = driver_open
