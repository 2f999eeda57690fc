"""The command that one of our own programs is: Python as here."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

START = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from {module} import main
main(int(sys.argv[2]))
"""


def module_path() -> list[str]:
    """Return where modules can be found here, without the entry that stands for the working folder."""
    return [entry for entry in sys.path if isinstance(entry, str) and entry]


def python_here(module: str, descriptor: int) -> Sequence[str]:
    """Python as here, with the installed modules that can be found here. The working folder is not on its path
    (``-P``), so that nothing that lies there takes the place of a module.

    Args:
        module: whose ``main`` is called, with the descriptor.
        descriptor: the program's end of its connection.
    """
    path = json.dumps(module_path())
    return [sys.executable, "-P", "-u", "-X", "faulthandler", "-c", START.format(module=module), path, str(descriptor)]
