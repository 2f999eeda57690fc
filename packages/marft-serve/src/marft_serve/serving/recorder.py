"""Records of a server: ungraded sessions to score or view later, and the tool definitions to replay them.

Replays need no tool servers, because the definitions are stored with the sessions.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from marft.common import atomic
from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.common.texts import format_error, single_line
from marft.common.types import Episode, Tool
from marft.config.interfaces.tools import ToolSource
from marft.config.plugins import Plugin
from marft.runs.episode_files import write_episodes

logger = get_logger(__name__)
SESSIONS_PER_FILE = 64  # sessions per file
FLUSH_SECONDS = 10.0  # maximum seconds before waiting sessions are written
TOOLS_FILE = "tools.json"


class Recorder:
    """Writer of episodes to ``sessions-<start>-000001.parquet`` and following files, on a background thread.

    Call :meth:`close` at the end.

    Args:
        folder: output folder.
        on_dropped: callback with the number of sessions that could not be written.

    Raises:
        UserError: the folder cannot be created.
    """

    def __init__(self, folder: Path, on_dropped: Callable[[int], object] = lambda _: None) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--record: cannot make {folder}: {error.strerror}") from error
        self.folder, self.on_dropped = folder, on_dropped
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
            self.on_dropped(len(episodes))
            message = single_line(format_error(error))
            logger.warning("%d sessions could not be recorded: %s", len(episodes), message)


def compute_digest(source: Plugin) -> str:
    """Return the hash that identifies a tool source.

    The source's recipe table is not stored, because it may contain secrets.
    """
    return atomic.digest_of_json(source.model_dump(mode="json", exclude_none=True))


def write_tools(folder: Path, plugins: Mapping[str, Plugin], sources: Mapping[str, ToolSource]) -> None:
    """Write the tool definitions for each source; existing definitions from other teams stay."""
    if not plugins:
        return
    tables = read_tables(folder)
    tables |= {
        compute_digest(plugin): [asdict(tool) for tool in sources[name].tools] for name, plugin in plugins.items()
    }
    atomic.write_file(folder / TOOLS_FILE, json.dumps(tables, indent=1, ensure_ascii=False) + "\n")


def read_tools(folder: Path) -> dict[str, tuple[Tool, ...]]:
    """Read the tool definitions for all stored sources, by hash.

    Raises:
        UserError: the file is damaged.
    """
    return {digest: tuple(Tool(**tool) for tool in tools) for digest, tools in read_tables(folder).items()}


def read_tables(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the stored tables; empty without a file.

    Raises:
        UserError: the file is damaged.
    """
    file = folder / TOOLS_FILE
    if not file.exists():
        return {}
    try:
        tables = atomic.read_json(file)
        assert all(set(tool) == {"name", "description", "parameters"} for tools in tables.values() for tool in tools)
    except (ValueError, OSError, AssertionError, AttributeError, TypeError) as error:
        raise UserError(f"{file} is damaged; remove it, and serve once more with --record") from error
    return dict(tables)
