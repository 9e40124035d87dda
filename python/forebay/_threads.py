"""Python functions that threads of the compiled part call, each by a single call.

Exceptions here go to ``sys.unraisablehook``: no other code can catch them.
"""

from __future__ import annotations

from typing import Any


def call_back(job: list[Any]) -> None:
    """Calls a callback with its transfer, and drops both before it returns."""
    callback, transfer = job
    job.clear()
    callback(transfer)


def log(level: int, logger: str, text: str) -> None:
    """Logs a line."""
    import logging

    package = logging.getLogger("forebay")
    if not package.handlers:
        # Without any handler, `logging` would print warnings.
        package.addHandler(logging.NullHandler())
    logging.getLogger(logger).log(level, "%s", text)
