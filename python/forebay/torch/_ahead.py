"""Values that a thread makes ahead of their consumer."""

from __future__ import annotations

import atexit
import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Generator
from typing import Any, Generic, TypeVar

from .._errors import Forked

T = TypeVar("T")

_LEAVES_WITHIN_S = 10.0
"""How long `close` waits for the value that is being made: a drive may hang."""


class Ahead(Generic[T]):
    """Takes values from a generator in a separate thread, at most `most` ahead.

    `take` raises what the generator raised, after the values before it. Only that thread runs and
    closes the generator.
    """

    def __init__(self, values: Generator[T, None, None], most: int, name: str) -> None:
        self._values = values
        self._most = most
        self._made: deque[T] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._stopped = False
        self._error: BaseException | None = None
        self._process = os.getpid()
        # A daemon, so that the process can end without `close`.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _running.add(self)
        self._thread.start()

    def take(self) -> T:
        """The next value; `StopIteration` at the end."""
        if self._process != os.getpid():
            text = "the loop belongs to the parent process, from before a fork: begin another"
            raise Forked(errno.EPERM, text)
        with self._changed:
            self._changed.wait_for(lambda: self._made or self._ended)
            if self._made:
                value = self._made.popleft()
                self._changed.notify_all()
                return value
            error, self._error = self._error, None
        if error is not None:
            raise error
        raise StopIteration

    def close(self) -> None:
        """Stops the thread, and drops the values."""
        if self._process != os.getpid():
            return  # a forked child lacks the thread, and the lock may be held forever
        with self._changed:
            self._stopped = True
            self._made.clear()
            self._changed.notify_all()
        # The garbage collector may close a loop on any thread, this one included.
        if self._thread is not threading.current_thread():
            self._thread.join(_LEAVES_WITHIN_S)
        _running.discard(self)

    def _run(self) -> None:
        error = None
        try:
            while self._has_room():
                self._add(next(self._values))
        except StopIteration:
            pass
        except BaseException as raised:
            error = raised
        self._values.close()
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def _has_room(self) -> bool:
        """Waits until one more value may be made; false after `close`."""
        with self._changed:
            # The one that is about to be made counts.
            self._changed.wait_for(lambda: self._stopped or len(self._made) < self._most)
            return not self._stopped

    def _add(self, value: T) -> None:
        with self._changed:
            if not self._stopped:
                self._made.append(value)
                self._changed.notify_all()


_running: weakref.WeakSet[Ahead[Any]] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Stops all threads: one within torch at the interpreter's end would abort the process."""
    for one in list(_running):
        one.close()
