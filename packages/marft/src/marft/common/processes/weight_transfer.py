"""Weight transfer to another process on the same machine, through folders in memory that are owned by one process."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from safetensors import SafetensorError

from marft.common.errors import RunError
from marft.common.processes.locked_folder import LockedFolder

SHARED_MEMORY = Path("/dev/shm")  # in-memory file system on Linux
PREFIX = "marft-weights-"


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
