"""KvikIO's environment variables, read as its settings."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from .._errors import shown

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


def _switch(text: str) -> bool:
    word = text.strip().lower()
    if word in {"1", "on", "true", "yes"}:
        return True
    if word in {"0", "off", "false", "no"}:
        return False
    raise ValueError(f"cannot be `{text}`: it takes `on` or `off`")


def _mode(text: str) -> int:
    if text.strip().lower() == "auto":
        return 2
    try:
        return int(_switch(text))
    except ValueError:
        raise ValueError(f"cannot be `{text}`: it takes `on`, `off` or `auto`") from None


def _number(text: str) -> int:
    if not re.fullmatch(r"\s*[0-9]+\s*", text):
        raise ValueError(f"cannot be `{text}`: it takes a number")
    return int(text)


def _size(text: str) -> int:
    found = re.fullmatch(r"\s*([0-9]+)\s*([kmg]?)(i?b)?\s*", text.lower())
    if found is None:
        raise ValueError(f"cannot be `{text}`: it takes a size such as `4194304` or `4MiB`")
    # As for the engine's own variables: MB is a power of ten, M and MiB are powers of two.
    base = 1000 if found[3] == "b" else 1024
    return int(found[1]) * int(base ** _POWERS[found[2]])


def _codes(text: str) -> list[int]:
    return [_number(code) for code in text.split(",")]


_VARIABLES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "KVIKIO_COMPAT_MODE": ("compat_mode", _mode),
    "KVIKIO_NTHREADS": ("thread_pool_nthreads", _number),
    "KVIKIO_NUM_THREADS": ("thread_pool_nthreads", _number),
    "KVIKIO_TASK_SIZE": ("task_size", _size),
    "KVIKIO_GDS_THRESHOLD": ("gds_threshold", _size),
    "KVIKIO_BOUNCE_BUFFER_SIZE": ("bounce_buffer_size", _size),
    "KVIKIO_AUTO_DIRECT_IO_READ": ("auto_direct_io_read", _switch),
    "KVIKIO_AUTO_DIRECT_IO_WRITE": ("auto_direct_io_write", _switch),
    "KVIKIO_HTTP_MAX_ATTEMPTS": ("http_max_attempts", _number),
    "KVIKIO_HTTP_STATUS_CODES": ("http_status_codes", _codes),
    "KVIKIO_HTTP_TIMEOUT": ("http_timeout", _number),
}


def read(environment: Mapping[str, str]) -> list[tuple[str, str, Any]]:
    """The settings in the environment: the variable, the setting's name, its value.

    Raises:
        ValueError: a value is invalid, or two variables of one setting differ.
    """
    found: dict[str, tuple[str, str, Any]] = {}
    for variable, (name, value_of) in _VARIABLES.items():
        if variable not in environment:
            continue
        try:
            value = value_of(environment[variable])
        except ValueError as error:
            raise ValueError(f"the variable `{variable}` {shown(error)}") from None
        before = found.get(name)
        if before is not None and before[2] != value:
            text = f"the variables `{before[0]}` and `{variable}` differ: set one of them"
            raise ValueError(text)
        found[name] = (variable, name, value)
    return list(found.values())


def unread(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Notes on variables of KvikIO that have no effect here."""
    names = (name for name in environment if name.startswith("KVIKIO_"))
    idle = (shown(name) for name in names if name not in _VARIABLES)
    return [f"the variable `{name}` has no effect" for name in idle]
