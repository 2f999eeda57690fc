"""Our Python interpreter's requirements on this machine, determined once."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PROBE_PATH = Path(__file__).with_name("probe.py")
PROBE_SECONDS = 60.0


@functools.cache
def find_requirements() -> dict[str, Any]:
    """Return the interpreter's requirements.

    The keys are ``python``, and the real paths of ``libraries``, ``files`` and ``folders`` by name. In a virtual
    environment, this is the base interpreter, which has the standard library.

    Raises:
        ValueError: the interpreter does not start under the jail's conditions.
    """
    python = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    try:
        completed = subprocess.run(
            [python, "-I", "-S", PROBE_PATH], env={}, check=True, capture_output=True, timeout=PROBE_SECONDS
        )
        return dict(json.loads(completed.stdout))
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise ValueError(f"{python} does not say what it needs: {error}") from error
