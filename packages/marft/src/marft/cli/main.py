"""Entry point for ``marft``. Heavy imports wait until a command runs."""

from __future__ import annotations

import signal
import sys
import warnings
from io import TextIOWrapper

import marft.cli.search_path  # noqa: F401 (before all other libraries)
from marft.cli import commands  # noqa: F401  (registers the commands, in the order of the help)
from marft.cli.app import app, expand_command_paths
from marft.common.log import receive_logs
from marft.common.texts import sanitize

expand_command_paths(app)

INSTALLED_FILES = r".*[/\\](?:site|dist)-packages[/\\]"  # pattern for the paths of installed packages


def command() -> None:
    """Run the console entry point; the process ends with the command."""
    from marft.cli.shutdown import limit_exit_time
    from marft.cli.streams import safe_streams

    hide_syntax_warnings_of_packages()
    with limit_exit_time(), safe_streams(sys.argv[1:]):
        main()


def main() -> None:
    """Run the command from ``sys.argv`` with user-friendly errors.

    Log records go to stderr until the command opens its output. They report for example which files the command runs
    for import paths in recipes.
    """
    from marft.cli.errors import DEBUG_FLAG, report_errors
    from marft.cli.shutdown import handle_sigterm, resend_dropped

    signal.signal(signal.SIGTERM, handle_sigterm)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # replace characters that the terminal cannot show
    words = [word for word in sys.argv[1:] if word != DEBUG_FLAG]
    with resend_dropped(), receive_logs(_print_record), report_errors(debug=DEBUG_FLAG in sys.argv):
        app(words, prog_name="marft")


def hide_syntax_warnings_of_packages() -> None:
    """Hide the ``SyntaxWarning`` of installed packages, which Python prints when it first compiles them.

    Warnings about other files stay visible. Python's own options (``-W``, ``PYTHONWARNINGS``) take precedence.
    """
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", category=SyntaxWarning, module=INSTALLED_FILES)


def _print_record(text: str) -> None:
    from marft.config.secrets import redact

    sys.stderr.write(f"{sanitize(redact(text))}\n")


if __name__ == "__main__":
    command()
