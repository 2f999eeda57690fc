"""Command line for one of MARFT's own programs, with the current Python and its module path."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

BOOTSTRAP = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {module} import main
main(int(sys.argv[2]))
"""


def module_path() -> list[str]:
    """Return the module search path without the entry for the working folder."""
    return [entry for entry in sys.path if isinstance(entry, str) and entry]


def python_command(module: str, descriptor: int) -> Sequence[str]:
    """Return a command that runs ``main`` in a module with the current Python and module search path.

    The working folder is not on the path (``-P``), so that no file there replaces a module.

    Args:
        module: module whose ``main`` is called with the descriptor.
        descriptor: file descriptor of the program's end of the connection.
    """
    path = json.dumps(module_path())
    return [
        sys.executable,
        "-P",
        "-u",
        "-X",
        "faulthandler",
        "-c",
        BOOTSTRAP.format(module=module),
        path,
        str(descriptor),
    ]
