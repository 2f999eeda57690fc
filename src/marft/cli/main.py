"""``marft``: train, evaluate, compare and report. Heavy imports wait until a command runs."""

from __future__ import annotations

import signal
import sys
from io import TextIOWrapper
from pathlib import Path

from marft.cli.app import app
from marft.cli.spoken import beginning, checking, engines, flows, learning, looking, planning, shipping  # noqa: F401 (importing them makes the commands)


def command() -> None:
    """The console entry point: the process ends with the command."""
    from marft.cli.leaving import leaving

    with leaving():
        main()


def main() -> None:
    """Run the command that was typed: errors of the user's making are one message, not a traceback.

    Parts that a recipe names by import path may lie in the folder that the command is run from.
    """
    from marft.cli.errors import DEBUG, friendly
    from marft.cli.interrupts import heeded, terminated

    signal.signal(signal.SIGTERM, terminated)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows another
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    words = [word for word in sys.argv[1:] if word != DEBUG]
    with heeded(), friendly(debug=DEBUG in sys.argv):
        app(words, prog_name="marft")


if __name__ == "__main__":
    command()
