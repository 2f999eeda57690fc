"""Recorder for a server's requests and answers, as ungraded sessions to score or view later."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from marft.common.texts import one_line, raised
from marft.common.types import Episode
from marft.runs.episodes import write_episodes

FULL = 64  # sessions per file
SECONDS = 10.0  # maximum seconds before waiting sessions are written


class Recorder:
    """Writer of episodes to ``sessions-<start>-000001.parquet`` and following files, on a background thread.

    Call :meth:`close` at the end.

    Args:
        folder: output folder.
        lost: callback with the number of sessions that could not be written.

    Raises:
        ValueError: the folder cannot be created.
    """

    def __init__(self, folder: Path, lost: Callable[[int], None]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--record: cannot make {folder}: {error.strerror}") from error
        self.folder, self._lost = folder, lost
        self._began = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        self._files = 0
        self._waiting: list[Episode] = []
        self._lock, self._stir = threading.Lock(), threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._write, name="marft-record", daemon=True)
        self._thread.start()

    def add(self, episode: Episode) -> None:
        """Queue an episode for writing."""
        with self._lock:
            self._waiting.append(episode)
            if len(self._waiting) >= FULL:
                self._stir.set()

    def close(self) -> None:
        """Write the remaining episodes."""
        self._over = True
        self._stir.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._over:
            self._stir.wait(SECONDS)
            self._stir.clear()
            self._flush()
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            episodes, self._waiting = self._waiting, []
        if not episodes:
            return
        self._files += 1
        try:
            write_episodes(self.folder / f"sessions-{self._began}-{self._files:06d}.parquet", episodes)
        except (OSError, ValueError) as error:  # a full disk, or an id that a file cannot store
            self._lost(len(episodes))
            said = one_line(raised(error))
            logging.getLogger("marft").warning("%d sessions could not be recorded: %s", len(episodes), said)
