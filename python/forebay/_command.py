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
"""Runs this package, even if the current folder or the path has another one."""
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def interpreter() -> list[str]:
    """The command line of this Python, without imports from the current folder.

    The flags ``-I``, ``-E`` and ``-s`` of this process are passed on.
    """
    # An embedded Python has no executable: then the path is searched for one.
    words = [sys.executable or "python3", "-P"]
    if sys.flags.isolated:
        words.append("-I")
    if sys.flags.ignore_environment:
        words.append("-E")
    if sys.flags.no_user_site:
        words.append("-s")
    return words


def program() -> list[str]:
    """The command line that starts this command in a new process; a verb follows."""
    return [*interpreter(), "-c", START, PACKAGE]


def main() -> int:
    """Runs the command that ``sys.argv`` names."""
    # The packages of this Python are searched for cuFile, whether or not it was activated.
    if sys.prefix != sys.base_prefix:
        os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
    # Python's handler would act only after the command, which has its own handlers.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return run_command(["forebay", *sys.argv[1:]], program())
