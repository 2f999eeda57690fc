"""Folders in memory, where something is handed to another process of this machine."""

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

from marft.errors import RunError

SHARED = Path("/dev/shm")  # memory, where Linux has it
WEIGHTS = "marft-weights-"


class SharedFolder:
    """A folder of this process's, in memory where there is some. It is held by a lock, which goes with its holder
    however that ends, in whichever container: folders that nobody holds any more are taken away. Close it.

    Args:
        parent: of the folder, where it shall not be in memory.
        prefix: of its name, as those of a kind have it.
    """

    def __init__(self, parent: Path | None = None, prefix: str = WEIGHTS) -> None:
        parent = parent or (SHARED if os.access(SHARED, os.W_OK) else Path(tempfile.gettempdir()))
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


class Handover:
    """Where weights are written down for an engine: in memory, or on disk once there was no room for them (a container
    may have 64 MB of shared memory)."""

    def __init__(self) -> None:
        self.folders = [SharedFolder()]
        self._moving = Lock()

    def write(self, name: str, save: Callable[[Path], None]) -> str:
        """Have weights written → where. Several threads may do so at one time.

        Args:
            name: which no others have.

        Raises:
            RunError: there is room for them neither in memory nor on disk.
        """
        folder = self.folders[-1]
        try:
            return _written(folder.path / name, save)
        except (OSError, SafetensorError) as error:
            if folder is not self.folders[0]:
                raise _no_room(folder.path, error) from None
        try:
            folder = self._on_disk()
            return _written(folder.path / name, save)
        except (OSError, SafetensorError) as error:
            raise _no_room(folder.path, error) from None

    def _on_disk(self) -> SharedFolder:
        with self._moving:
            if len(self.folders) == 1:
                self.folders.append(SharedFolder(Path(tempfile.gettempdir())))
            return self.folders[1]

    def close(self) -> None:
        """Take away all that was written."""
        for folder in self.folders:
            folder.close()


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
        "folder with more, and go on (--resume): everything saved before is whole"
    )
