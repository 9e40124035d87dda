"""The engine that opens a file: the default one, or one with the limits of `defaults`."""

from __future__ import annotations

import os
import threading
import weakref

from .._forebay import Engine
from .._process import default_engine
from . import defaults

_lock = threading.Lock()
# Files keep their engine. While one is open, the same settings find the same engine.
_made: weakref.WeakValueDictionary[tuple[tuple[str, object], ...], Engine]
_made = weakref.WeakValueDictionary()
_latest: Engine | None = None


def engine() -> Engine:
    """The engine for the settings as they are now."""
    global _latest
    limits = defaults.limits()
    if not limits:
        return default_engine()
    key = tuple(sorted(limits.items()))
    with _lock:
        found = _made.get(key)
        if found is None:
            found = Engine(**limits)
            _made[key] = found
        # The last one is kept, so that opening and closing files does not make many.
        _latest = found
        return found


def _in_child() -> None:
    # The parent's engines are left as they are: they belong to its threads.
    global _made, _latest, _lock
    _made, _lock = weakref.WeakValueDictionary(), threading.Lock()
    _latest = None


os.register_at_fork(after_in_child=_in_child)
