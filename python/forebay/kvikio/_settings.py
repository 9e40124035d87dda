"""Settings by name, which stay or are restored, and their environment variables."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any

_SWITCH = {
    **dict.fromkeys(("1", "on", "true", "yes"), True),
    **dict.fromkeys(("0", "off", "false", "no"), False),
}
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3}


class ConfigContextManager:
    """Settings that stay, or that are restored at the end of a ``with`` block."""

    def __init__(self, values: dict[str, Any], config: Mapping[str, Any]) -> None:
        self._values = values
        self._before = {name: values.get(name) for name in config}
        values.update(config)

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                self._values.pop(name, None)
            else:
                self._values[name] = value


def given(config: tuple[Any, ...]) -> dict[str, Any]:
    """The settings of a call of `set`.

    Raises:
        ValueError: other arguments than a name and a value, or a dictionary.
    """
    match config:
        case (dict() as several,):
            return several
        case (str() as name, value):
            return {name: value}
    raise ValueError("call `set({name: value, ...})` or `set(name, value)`")


def parsed(text: str, like: Any) -> Any:
    """The value of a variable, of the kind of another value.

    Raises:
        ValueError: it is invalid.
    """
    word = text.strip().lower()
    if isinstance(like, list):
        return [parsed(code, 0) for code in text.split(",")]
    if isinstance(like, bool | enum.Enum):
        expected = "`on` or `off`" if isinstance(like, bool) else "`on`, `off` or `auto`"
        found = 2 if word == "auto" and "auto" in expected else _SWITCH.get(word)
    else:
        expected, found = "a number, or a size such as `4194304` or `4MiB`", None
        if size := re.fullmatch(r"([0-9]+)\s*([kmg]?)(i?b)?", word):
            # As for the engine's own variables: MB is a power of ten, M and MiB are powers of two.
            base = 1000 if size[3] == "b" else 1024
            found = int(size[1]) * int(base ** _POWERS[size[2]])
    if found is None:
        raise ValueError(f"cannot be `{text}`: it takes {expected}")
    return found
