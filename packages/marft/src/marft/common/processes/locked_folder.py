"""Temporary folder that is locked by its process, so that later processes can delete abandoned ones."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


class LockedFolder:
    """Temporary folder, locked by this process. Close it after use.

    The lock ends with its process, whatever the cause, also across containers. Folders with the same prefix and no lock
    are deleted when a new one is created.

    Args:
        parent: parent folder.
        prefix: prefix of the folder's name.
    """

    def __init__(self, parent: Path, prefix: str) -> None:
        for old in parent.glob(f"{prefix}*"):
            _remove_stale(old)
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-", dir=parent))
            with suppress(FileNotFoundError):  # another process deleted the folder as abandoned before it was locked
                self._lock_descriptor = _lock_folder(self.path)
                if self.path.exists():
                    return
                os.close(self._lock_descriptor)

    def close(self) -> None:
        """Delete the folder with its content. Idempotent."""
        descriptor, self._lock_descriptor = self._lock_descriptor, -1
        if descriptor >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(descriptor)


def _remove_stale(folder: Path) -> None:
    with suppress(OSError):  # locked, owned by another user, or already deleted
        descriptor = _lock_folder(folder)
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _lock_folder(folder: Path) -> int:
    """Lock a folder exclusively and return its descriptor.

    Raises:
        OSError: another process holds the lock, or the folder does not exist.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
