"""The command that a worker process is."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

START = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from marft.workers.worker import main
main(int(sys.argv[2]))
"""


def worker_command(descriptor: int) -> Sequence[str]:
    """Python as here, with the modules that can be found here.

    Args:
        descriptor: the worker's end of its connection.
    """
    path = json.dumps([entry for entry in sys.path if isinstance(entry, str)])
    return [sys.executable, "-u", "-X", "faulthandler", "-c", START, path, str(descriptor)]
