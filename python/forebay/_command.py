"""The ``forebay`` command."""

from __future__ import annotations

import signal
import sys

from ._forebay import run_command


def main() -> int:
    """Runs the command that ``sys.argv`` names."""
    # The command has handlers of its own; a pipe that nobody reads ends it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Without an executable, where Python is embedded, this one is looked for by its name.
    program = [sys.executable or "python3", "-m", "forebay"]
    return run_command(["forebay", *sys.argv[1:]], program)
