"""Folders in memory, where weights are handed to another process of this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

SHARED = Path("/dev/shm")  # memory, where Linux has it
PREFIX = "marft-weights-"


def new_folder() -> Path:
    """A folder of this process's. Those that processes left behind which are no more are taken away."""
    parent = SHARED if os.access(SHARED, os.W_OK) else Path(tempfile.gettempdir())
    for old in parent.glob(f"{PREFIX}*"):
        if not _lives(old.name.removeprefix(PREFIX).partition("-")[0]):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))


def _lives(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True
