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
"""Runs the package that runs this, and no other that the current folder or the path may have."""
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def main() -> int:
    """Runs the command that ``sys.argv`` names."""
    if sys.argv[1:2] == ["stream-bench"]:  # what `forebay stream` becomes
        from .stream_bench.__main__ import main as measure

        del sys.argv[1]
        return measure()
    # The command has handlers of its own; a pipe that nobody reads ends it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Without an executable, where Python is embedded, this one is looked for by its name.
    program = [sys.executable or "python3", "-P", "-c", START, PACKAGE]
    return run_command(["forebay", *sys.argv[1:]], program)
