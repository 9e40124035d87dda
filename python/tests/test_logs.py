"""Events of engines in `logging`."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import forebay
from conftest import program


def run(code: str, *arguments: str) -> str:
    return program(textwrap.dedent(code), *arguments, timeout=60).stderr


def test_the_loggers_level_selects_the_lines(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3_000_000))
    code = """
        import logging, sys
        logging.basicConfig(level=sys.argv[2], format="%(name)s %(levelname)s %(message)s")
        import forebay
        forebay.open(sys.argv[1]).read_into(bytearray(3_000_000))
    """
    reported = run(code, str(tmp_path / "file"), "DEBUG")
    assert "forebay.engine" in reported and "forebay.transfer DEBUG" in reported
    assert str(tmp_path / "file") in reported
    assert run(code, str(tmp_path / "file"), "WARNING") == ""


def test_failures_are_logged_if_the_program_has_a_handler(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3_000_000))
    code = """
        import os, sys
        if len(sys.argv) > 2:
            import logging
            logging.basicConfig()
        before = len(os.listdir("/proc/self/task"))
        import forebay
        engine = forebay.Engine()
        assert len(os.listdir("/proc/self/task")) == before
        engine.gpu("sim:lost-after=1")
        target = engine.allocate(3_000_000, "sim")
        try:
            engine.open(sys.argv[1]).read_into(target)
        except forebay.Error:
            pass
    """
    reported = run(code, str(tmp_path / "file"), "with a handler")
    assert "lost" in reported.lower(), reported
    # The program has caught the error, and has set up no logging.
    assert run(code, str(tmp_path / "file")) == ""


def test_an_end_of_the_file_is_no_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(3_000_000))
    code = """
        import logging, sys
        logging.basicConfig(level=sys.argv[2])
        import forebay
        with forebay.open(sys.argv[1]) as file:
            for size in [100, 3_000_000]:
                try:
                    file.read_into(bytearray(size), 2_999_999)
                except forebay.EndOfFile:
                    pass
    """
    assert run(code, str(tmp_path / "file"), "WARNING") == ""
    assert run(code, str(tmp_path / "file"), "DEBUG").count("ended early") == 2


def test_no_name_breaks_a_line_or_acts_on_a_terminal(tmp_path: Path) -> None:
    acts = "\n\r\x1b]0;owned\x07\x7f\x9b31m\u202e\u2066\u200f\u061c\u2028"
    name = os.fsencode(tmp_path) + f"/a{acts}ERROR forged".encode()
    with open(name, "wb") as file:
        file.write(bytes(100_000))
    code = """
        import logging, os, sys
        logging.basicConfig(level="DEBUG", format="%(levelname)s %(message)s")
        import forebay
        path = os.fsencode(sys.argv[1])
        forebay.open(path).read_into(bytearray(100_000))
    """
    reported = run(code, os.fsdecode(name))
    assert "forged" in reported
    lines = reported.split("\n")[:-1]
    assert all(line.isprintable() and line.startswith("DEBUG ") for line in lines), reported
    try:
        forebay.open(name + b"-missing")
    except FileNotFoundError as error:
        assert "forged-missing" in str(error) and str(error).isprintable()
        assert os.fsencode(error.filename) == name + b"-missing"


def test_a_forked_child_logs_as_well(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    reported = run(
        """
        import logging, os, sys
        logging.basicConfig(level="DEBUG", format="%(process)d %(message)s")
        import forebay
        forebay.open(sys.argv[1]).read_into(bytearray(100_000))
        child = os.fork()
        if child == 0:
            forebay.open(sys.argv[1]).read_into(bytearray(100_000))
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """,
        str(tmp_path / "file"),
    )
    processes = {line.split()[0] for line in reported.splitlines() if line.split()[0].isdigit()}
    assert len(processes) == 2, reported


def test_lines_that_are_dropped_are_counted_and_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(100_000))
    reported = run(
        """
        import atexit, logging, sys, threading

        class Slow(logging.Handler):
            goes_on, lines = threading.Event(), []
            def emit(self, record):
                self.goes_on.wait(60)
                self.lines.append((record.name, record.levelname, record.getMessage()))

        @atexit.register  # before the package does so, and thus run behind what that does
        def check():
            notices = [line for line in slow.lines if line[0] == "forebay.logs"]
            print(len(slow.lines), len(notices), *notices[0][1:], sep="|", file=sys.stderr)

        logging.basicConfig(level="DEBUG", handlers=[slow := Slow()])
        import forebay
        file = forebay.open(sys.argv[1])
        for _ in range(2000):
            file.start_read_into(bytearray(100_000)).result()
        slow.goes_on.set()
        """,
        str(tmp_path / "file"),
    )
    lines, notices, level, text = reported.strip().split("|")
    assert notices == "1" and level == "WARNING" and text.startswith("dropped "), reported
    dropped = int(text.split()[1])
    # Each transfer logs two lines; 1,024 wait behind the one that is being forwarded.
    assert dropped > 2000 and 1024 <= int(lines) <= 1200, reported
    assert 4000 <= dropped + int(lines) <= 4200, reported
