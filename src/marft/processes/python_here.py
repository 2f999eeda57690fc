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


def python_here(module: str, descriptor: int) -> Sequence[str]:
    """Python as here, with the modules that can be found here.

    Args:
        module: whose ``main`` is called, with the descriptor.
        descriptor: the program's end of its connection.
    """
    path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
    return [sys.executable, "-u", "-X", "faulthandler", "-c", START.format(module=module), path, str(descriptor)]
