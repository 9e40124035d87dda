"""Errors that are those of Forebay and of KvikIO.

KvikIO raises ``RuntimeError`` for errors of the system. Here such an error has Forebay's class and
is also a ``RuntimeError``, so that an ``except`` for either catches it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .. import _errors as engine_errors


class ClosedFile(ValueError, RuntimeError):
    """A call on a closed file."""


class UnfitMemory(ValueError, BufferError):
    """Memory that cannot be used: it is not contiguous, or read-only."""


class NotOffered(NotImplementedError):
    """A part of KvikIO that Forebay does not offer; it is a ``RuntimeError`` as well."""


def _with_runtime_error(kind: type[engine_errors.Error]) -> type[engine_errors.Error]:
    """A class of this module for one of the engine's: other processes find it by its name."""
    about = {"__doc__": kind.__doc__, "__module__": __name__}
    made = type(kind.__name__, (kind, RuntimeError), about)
    globals()[made.__name__] = made
    return made


_CLASSES = {
    kind: _with_runtime_error(kind)
    for kind in (getattr(engine_errors, name) for name in engine_errors.__all__)
}


def with_runtime_error(error: engine_errors.Error) -> engine_errors.Error:
    """The same error, as a ``RuntimeError`` as well."""
    if isinstance(error, RuntimeError):
        return error
    kind = next(kind for kind in type(error).__mro__ if kind in _CLASSES)
    made = _CLASSES[kind](error.errno, error.strerror, error.filename)
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made.with_traceback(error.__traceback__)


@contextlib.contextmanager
def in_own_classes() -> Iterator[None]:
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
