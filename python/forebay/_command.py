"""The ``forebay`` command."""

from __future__ import annotations

import os
import signal
import sys

from ._forebay import run_command

START = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from forebay._command import main
sys.exit(main())
"""
"""Runs this package, and no other that the current folder or the path may have."""
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def interpreter() -> list[str]:
    """This Python, which never imports from the current folder.

    What this process ignores (``-I``, ``-E``, ``-s``) the new one ignores as well.
    """
    # Without an executable, where Python is embedded, the path is searched for one.
    words = [sys.executable or "python3", "-P"]
    if sys.flags.isolated:
        words.append("-I")
    if sys.flags.ignore_environment:
        words.append("-E")
    if sys.flags.no_user_site:
        words.append("-s")
    return words


def program() -> list[str]:
    """The words that start this command in a new process; a verb follows them."""
    return [*interpreter(), "-c", START, PACKAGE]


def main() -> int:
    """Runs the command that ``sys.argv`` names."""
    if sys.argv[1:2] == ["stream-bench"]:  # what `forebay stream` becomes
        from .stream_bench.__main__ import main as measure

        del sys.argv[1]
        return measure()
    # The command has its own handlers; a closed pipe ends it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return run_command(["forebay", *sys.argv[1:]], program())
