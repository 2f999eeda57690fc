"""Recorder for a server's requests and answers, as ungraded sessions to score or view later."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from marft.common.texts import format_error, single_line
from marft.common.types import Episode
from marft.runs.episode_files import write_episodes

SESSIONS_PER_FILE = 64  # sessions per file
FLUSH_SECONDS = 10.0  # maximum seconds before waiting sessions are written


class Recorder:
    """Writer of episodes to ``sessions-<start>-000001.parquet`` and following files, on a background thread.

    Call :meth:`close` at the end.

    Args:
        folder: output folder.
        on_dropped: callback with the number of sessions that could not be written.

    Raises:
        ValueError: the folder cannot be created.
    """

    def __init__(self, folder: Path, on_dropped: Callable[[int], None]) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ValueError(f"--record: cannot make {folder}: {error.strerror}") from error
        self.folder, self._on_dropped = folder, on_dropped
        self._start_label = f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}"
        self._file_count = 0
        self._pending: list[Episode] = []
        self._lock, self._write_event = threading.Lock(), threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._write, name="marft-record", daemon=True)
        self._thread.start()

    def add_episode(self, episode: Episode) -> None:
        """Queue an episode for writing."""
        with self._lock:
            self._pending.append(episode)
            if len(self._pending) >= SESSIONS_PER_FILE:
                self._write_event.set()

    def close(self) -> None:
        """Write the remaining episodes."""
        self._closing = True
        self._write_event.set()
        self._thread.join()

    def _write(self) -> None:
        while not self._closing:
            self._write_event.wait(FLUSH_SECONDS)
            self._write_event.clear()
            self._flush()
        self._flush()

    def _flush(self) -> None:
        with self._lock:
            episodes, self._pending = self._pending, []
        if not episodes:
            return
        self._file_count += 1
        try:
            write_episodes(self.folder / f"sessions-{self._start_label}-{self._file_count:06d}.parquet", episodes)
        except (OSError, ValueError) as error:  # a full disk, or an id that a file cannot store
            self._on_dropped(len(episodes))
            message = single_line(format_error(error))
            logging.getLogger("marft").warning("%d sessions could not be recorded: %s", len(episodes), message)
