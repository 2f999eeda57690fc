"""Folders in memory, where weights are handed to another process of this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from marft.errors import RunError

SHARED = Path("/dev/shm")  # memory, where Linux has it
PREFIX = "marft-weights-"


class Handover:
    """Where weights are written down for an engine: in memory, or on disk once there was no room for them (a container
    may have 64 MB of shared memory)."""

    def __init__(self) -> None:
        self.folders = [new_folder()]

    def write(self, name: str, save: Callable[[Path], None]) -> str:
        """Have weights written → where.

        Args:
            name: which no others have.

        Raises:
            RunError: there is room for them neither in memory nor on disk.
        """
        try:
            return _written(self.folders[-1] / name, save)
        except (OSError, SafetensorError) as error:
            if len(self.folders) > 1:
                raise _no_room(self.folders[-1], error) from error
        self.folders.append(new_folder(Path(tempfile.gettempdir())))
        try:
            return _written(self.folders[-1] / name, save)
        except (OSError, SafetensorError) as error:
            raise _no_room(self.folders[-1], error) from error

    def close(self) -> None:
        """Take away all that was written."""
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


def new_folder(parent: Path | None = None) -> Path:
    """A folder of this process's, in memory where there is some. Those that processes left behind which are no more are
    taken away."""
    parent = parent or (SHARED if os.access(SHARED, os.W_OK) else Path(tempfile.gettempdir()))
    for old in parent.glob(f"{PREFIX}*"):
        if not _lives(old.name.removeprefix(PREFIX).partition("-")[0]):
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))


def _written(folder: Path, save: Callable[[Path], None]) -> str:
    try:
        save(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return str(folder)


def _no_room(folder: Path, error: Exception) -> RunError:
    return RunError(
        f"weights for the engine could not be written to {folder.parent}: {error}; make room there, or set TMPDIR to a "
        "folder with more"
    )


def _lives(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True
    return True
