"""Errors that are those of Forebay and of KvikIO.

KvikIO raises ``RuntimeError`` for errors of the system. Here such an error has Forebay's class and
is also a ``RuntimeError``, so that an ``except`` for either catches it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from .. import _errors as engine_errors


class ClosedFile(ValueError, RuntimeError):
    """A call on a closed file."""


class UnfitMemory(ValueError, BufferError):
    """Memory that cannot be used: it is not contiguous, or read-only."""


class NotOffered(NotImplementedError):
    """A part of KvikIO that Forebay does not offer; it is a ``RuntimeError`` as well."""


_made: dict[type[engine_errors.Error], type[engine_errors.Error]] = {}


def _both(kind: type[engine_errors.Error]) -> type[engine_errors.Error]:
    if kind in _made:
        return _made[kind]
    body = {"__doc__": kind.__doc__, "__module__": kind.__module__, "__reduce__": _reduced}
    made = type(kind.__name__, (kind, RuntimeError), body)
    # If two threads make it at once, both get the same one.
    return _made.setdefault(kind, made)


def _reduced(error: engine_errors.Error) -> tuple[Any, ...]:
    # Another process cannot import its class by name.
    return _again, (type(error).__mro__[1], error.args, error.filename, error.__dict__)


def _again(
    kind: type[engine_errors.Error], args: tuple[Any, ...], name: Any, about: dict[str, Any]
) -> engine_errors.Error:
    made = _both(kind)(*args, name)
    made.__dict__.update(about)
    return made


def with_runtime_error(error: engine_errors.Error) -> engine_errors.Error:
    """The same error, as a ``RuntimeError`` as well."""
    if isinstance(error, RuntimeError):
        return error
    made = _both(type(error))(error.errno, error.strerror, error.filename)
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made.with_traceback(error.__traceback__)


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Raises errors of the block in the classes of this module."""
    try:
        yield
    except engine_errors.Error as error:
        raise with_runtime_error(error) from error.__cause__
    except BufferError as error:
        raise UnfitMemory(str(error)) from None


def missing(error: OSError, tried: str) -> engine_errors.Error:
    """A system error that Python raised, as an error of the engine."""
    return with_runtime_error(engine_errors.of_system(error, tried, error.filename))
