"""``marft``: train, evaluate, compare and report. Heavy imports wait until a command runs."""

from __future__ import annotations

import signal
import sys
from io import TextIOWrapper

import marft.cli.search_path  # noqa: F401 (before all libraries)
from marft.cli.app import app, with_paths_at_home
from marft.cli.spoken import beginning, engines, exporting, learning, looking  # noqa: F401 (importing them makes the commands)
from marft.common import user_modules
from marft.common.texts import visible

with_paths_at_home(app)


def command() -> None:
    """The console entry point: the process ends with the command."""
    from marft.cli.leaving import leaving
    from marft.cli.streams import unbroken_streams

    with leaving(), unbroken_streams(sys.argv[1:]):
        main()


def main() -> None:
    """Run the command that was typed: errors of the user's making are one message, not a traceback.

    Parts that a recipe names by import path may lie in the folder that the command is run from. The command says on
    stderr which files it runs for them.
    """
    from marft.cli.errors import DEBUG, friendly
    from marft.cli.interrupts import heeded, terminated

    signal.signal(signal.SIGTERM, terminated)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows another
    user_modules.on_note(_show)
    words = [word for word in sys.argv[1:] if word != DEBUG]
    with heeded(), friendly(debug=DEBUG in sys.argv):
        app(words, prog_name="marft")


def _show(text: str) -> None:
    sys.stderr.write(f"{visible(text)}\n")


if __name__ == "__main__":
    command()
