"""What the Python that runs us needs of the machine, found out once."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROBE = Path(__file__).with_name("probe.py")
PROBE_SECONDS = 60.0


@functools.cache
def needs() -> dict[str, Any]:
    """The interpreter and what it reads: ``python``; real paths of ``libraries``, ``files`` and ``folders`` by name.

    Of a virtual environment, it is the interpreter behind it: its standard library is there.

    Raises:
        ValueError: the interpreter cannot be started in the way in which the jail starts it.
    """
    python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    try:
        told = subprocess.run(
            [python, "-I", "-S", PROBE], env={}, check=True, capture_output=True, timeout=PROBE_SECONDS
        )
        return dict(json.loads(told.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(f"{python} does not say what it needs: {error}") from error
