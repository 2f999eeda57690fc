"""Weight transfer to another process on the same machine, through folders in memory that are owned by one process."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock

from safetensors import SafetensorError

from marft.common.errors import RunError

SHARED_MEMORY = Path("/dev/shm")  # in-memory file system on Linux
PREFIX = "marft-weights-"


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


class SharedFolder(LockedFolder):
    """Temporary folder in memory if possible. Close it after use.

    Args:
        parent: parent folder; None: shared memory, or the system's temporary folder.
    """

    def __init__(self, parent: Path | None = None) -> None:
        super().__init__(
            parent or (SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else Path(tempfile.gettempdir())), PREFIX
        )


class WeightTransfer:
    """Weight transfer to an engine: through memory, or through disk after memory has run out of space.

    A container may have only 64 MB of shared memory.
    """

    def __init__(self) -> None:
        self.folders = [SharedFolder()]
        self._lock = Lock()

    def write(self, name: str, save: Callable[[Path], None]) -> str:
        """Write weights to a new folder and return its path. Thread-safe.

        Args:
            name: unique name of the folder.
            save: function that writes the weights to a folder.

        Raises:
            RunError: neither memory nor disk has enough space.
        """
        folder = self.folders[-1]
        try:
            return _write_folder(folder.path / name, save)
        except (OSError, SafetensorError) as error:
            if folder is not self.folders[0]:
                raise _out_of_space(folder.path, error) from None
        try:
            folder = self._use_disk()
            return _write_folder(folder.path / name, save)
        except (OSError, SafetensorError) as error:
            raise _out_of_space(folder.path, error) from None

    def _use_disk(self) -> SharedFolder:
        with self._lock:
            if len(self.folders) == 1:
                self.folders.append(SharedFolder(Path(tempfile.gettempdir())))
            return self.folders[1]

    def close(self) -> None:
        """Delete all written folders."""
        for folder in self.folders:
            folder.close()


def _write_folder(folder: Path, save: Callable[[Path], None]) -> str:
    try:
        save(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return str(folder)


def _out_of_space(folder: Path, error: Exception) -> RunError:
    return RunError(
        f"weights for the engine could not be written to {folder.parent}: {error}; make room there, or set TMPDIR to a "
        "folder with more, and go on (--resume): everything saved before is whole"
    )
