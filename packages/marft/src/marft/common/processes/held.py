"""Folders that are a process's as long as it is there."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


class HeldFolder:
    """A folder of this process's. It is held by a lock, which goes with its holder however that ends, in whichever
    container: folders of the same prefix that nobody holds any more are taken away. Close it.

    Args:
        parent: of the folder.
        prefix: of its name.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        for old in parent.glob(f"{prefix}*"):
            _remove_abandoned(old)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
            with suppress(FileNotFoundError):  # somebody took it for abandoned, before it was held
                self._held = _lock(self.path)
                if self.path.exists():
                    return
                os.close(self._held)

    def close(self) -> None:
        """Take it away, with all that is in it. Once is enough."""
        held, self._held = self._held, -1
        if held >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(held)


def _remove_abandoned(folder: Path) -> None:
    with suppress(OSError):  # it is held, another user's, or gone
        held = _lock(folder)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _lock(folder: Path) -> int:
    """
    Raises:
        OSError: somebody else holds it, or it is gone.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
