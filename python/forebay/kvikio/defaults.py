"""KvikIO's settings, by name.

Two have an effect here: ``num_threads``, and the pair ``auto_direct_io_read`` and
``auto_direct_io_write`` if both are off. Files opened afterwards belong to an engine with these
limits; older files keep theirs. The other settings can be set and read back, without effect:
`notes` lists them with the reasons.
"""

from __future__ import annotations

import enum
import operator
import os
from collections.abc import Mapping
from typing import Any

from .._errors import shown
from .._forebay import reader_count
from ._settings import ConfigContextManager, given, parsed


class CompatMode(enum.IntEnum):
    """Whether bytes may go directly from a drive to a GPU."""

    OFF = 0
    ON = 1
    AUTO = 2


class RemoteIOBackend(enum.IntEnum):
    """KvikIO's backends for remote files."""

    EASY_THREADPOOL = 0
    MULTI_POLL = 1


class RemoteReactorDispatch(enum.IntEnum):
    """How KvikIO distributes requests for remote files."""

    PER_CHUNK = 0
    PER_PREAD = 1


_REMOTE = "remote files are not offered"

_KNOWN: dict[str, tuple[Any, str | None]] = {
    "compat_mode": (CompatMode.AUTO, "the engine chooses the route in each mode"),
    # The engine's default, so that setting the value that was read has no effect.
    "thread_pool_nthreads": (reader_count(), None),
    "task_size": (4 << 20, "the engine divides a transfer by what the drive and the link need"),
    "gds_threshold": (
        16 << 10,
        "the engine's limit `small_size` (FOREBAY_SMALL_SIZE) says what the calling thread moves",
    ),
    "bounce_buffer_size": (
        16 << 20,
        "the engine's limits `slot_size` and `arena_size` (FOREBAY_SLOT_SIZE, FOREBAY_ARENA_SIZE) "
        "bound the pinned memory",
    ),
    "auto_direct_io_read": (True, "the engine reads what is not in the page cache with O_DIRECT"),
    "auto_direct_io_write": (True, "the engine writes through the page cache"),
    "http_max_attempts": (3, _REMOTE),
    "http_status_codes": ([429, 500, 502, 503, 504], _REMOTE),
    "http_timeout": (60, _REMOTE),
    "remote_io_backend": (RemoteIOBackend.EASY_THREADPOOL, _REMOTE),
    "remote_io_num_reactors": (1, _REMOTE),
    "remote_io_reactor_dispatch": (RemoteReactorDispatch.PER_CHUNK, _REMOTE),
    "remote_io_max_concurrent_requests": (256, _REMOTE),
}

_SET_ALONE = {
    "remote_io_num_reactors",
    "remote_io_reactor_dispatch",
    "remote_io_max_concurrent_requests",
}
"""What KvikIO fixes with the first remote file; it accepts none of them in a ``with``."""

_VARIABLES = {
    "KVIKIO_NTHREADS": "thread_pool_nthreads",
    "KVIKIO_NUM_THREADS": "thread_pool_nthreads",
    **{
        f"KVIKIO_{name.upper()}": name
        for name in _KNOWN
        if name != "thread_pool_nthreads" and not name.startswith("remote_")
    },
}
"""The settings that variables of the environment set."""

_values: dict[str, Any] = {}
"""The settings from the environment and from calls."""


def _name_of(name: str) -> str:
    known = "thread_pool_nthreads" if name == "num_threads" else name
    if known not in _KNOWN:
        raise KeyError(f"unknown setting `{name}`: use num_threads, {', '.join(_KNOWN)}")
    return known


def _checked(name: str, value: Any) -> Any:
    kind = type(_KNOWN[_name_of(name)][0])
    if kind is list:
        return [operator.index(code) for code in value]
    try:
        value = kind(operator.index(value))
    except TypeError:
        wanted = "number" if kind is int else kind.__name__
        raise TypeError(f"`{name}` cannot be {value!r}: give a {wanted}") from None
    if value < 0:
        raise OverflowError(f"`{name}` cannot be {value}: it must be a positive integer")
    if value == 0 and kind is int and name != "gds_threshold":
        raise ValueError(f"`{name}` cannot be 0: it must be a positive integer")
    return value


def set(*config: Any) -> ConfigContextManager | None:
    """Sets one by its name and value, or several by a dictionary: permanently, or for a ``with``.

    Raises:
        KeyError: the name is unknown.
        ValueError: a value is invalid, or other arguments.
    """
    wanted = given(config)
    alone = sorted(_SET_ALONE.intersection(wanted))
    if alone and isinstance(config[0], dict):
        raise ValueError(f"{alone} cannot be restored: set each by `set(name, value)`")
    checked = {_name_of(name): _checked(name, value) for name, value in wanted.items()}
    made = ConfigContextManager(_values, checked)
    return None if alone else made


def get(config_name: str) -> Any:
    """The value of a setting.

    ``num_threads`` is by default that of the engine, not KvikIO's 1.
    """
    name = _name_of(config_name)
    return _values.get(name, _KNOWN[name][0])


def is_compat_mode_preferred() -> bool:
    """As in KvikIO: true unless ``compat_mode`` is ``OFF``."""
    return bool(get("compat_mode") != CompatMode.OFF)


def notes() -> list[str]:
    """The settings that have no effect here, with the reasons."""
    idle = (
        f"`{name}` has no effect: {_KNOWN[name][1]}"
        for name in _values
        if _KNOWN[name][1] and not (name.startswith("auto_direct_io") and not direct_io())
    )
    unread = (name for name in os.environ if name.startswith("KVIKIO_") and name not in _VARIABLES)
    return [*idle, *(f"the variable `{shown(name)}` has no effect" for name in unread)]


def direct_io() -> bool:
    """Whether files may be read with O_DIRECT: false if both settings are off."""
    both = ("auto_direct_io_read", "auto_direct_io_write")
    return any(_values.get(name, True) for name in both)


def limits() -> dict[str, Any]:
    """The limits of the engine for new files; empty for the default engine."""
    options: dict[str, Any] = {}
    if "thread_pool_nthreads" in _values:
        options["readers"] = _values["thread_pool_nthreads"]
    if not direct_io():
        options["direct_io"] = False
    return options


def _begin(environment: Mapping[str, str]) -> None:
    found: dict[str, tuple[str, Any]] = {}
    for variable, name in _VARIABLES.items():
        if variable not in environment:
            continue
        try:
            value = _checked(name, parsed(environment[variable], _KNOWN[name][0]))
        except ValueError as error:
            why = shown(error).removeprefix(f"`{name}` ")
            raise ValueError(f"the variable `{variable}` {why}") from None
        other, before = found.setdefault(name, (variable, value))
        if before != value:
            text = f"the variables `{other}` and `{variable}` differ: set one of them"
            raise ValueError(text)
    _values.update({name: value for name, (_, value) in found.items()})


_begin(os.environ)
