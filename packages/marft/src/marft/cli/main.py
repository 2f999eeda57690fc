"""Entry point for ``marft``. Heavy imports wait until a command runs."""

from __future__ import annotations

import signal
import sys
from io import TextIOWrapper

import marft.cli.search_path  # noqa: F401 (before all other libraries)
from marft.cli.app import app, with_paths_at_home
from marft.cli.spoken import beginning, engines, exporting, learning, looking  # noqa: F401 (registers the commands)
from marft.common import user_modules
from marft.common.texts import visible

with_paths_at_home(app)


def command() -> None:
    """Run the console entry point; the process ends with the command."""
    from marft.cli.leaving import leaving
    from marft.cli.streams import unbroken_streams

    with leaving(), unbroken_streams(sys.argv[1:]):
        main()


def main() -> None:
    """Run the command from ``sys.argv`` with user-friendly errors.

    Modules that a recipe names by import path may be in the working folder. The command reports on stderr which files
    it runs for them.
    """
    from marft.cli.errors import DEBUG, friendly
    from marft.cli.interrupts import heeded, terminated

    signal.signal(signal.SIGTERM, terminated)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # replace characters that the terminal cannot show
    user_modules.on_note(_show)
    words = [word for word in sys.argv[1:] if word != DEBUG]
    with heeded(), friendly(debug=DEBUG in sys.argv):
        app(words, prog_name="marft")


def _show(text: str) -> None:
    sys.stderr.write(f"{visible(text)}\n")


if __name__ == "__main__":
    command()
