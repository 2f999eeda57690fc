"""Evaluation store: saves episodes in parts to resume interrupted evaluations.

Parts are played one after the other, each on an engine with an empty prefix cache. So the result is the same for an
uninterrupted, a resumed or a saved evaluation. It is identical bit for bit if the engine is deterministic.
"""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marft.agents.game import Attempt
from marft.agents.team import Team
from marft.common import atomic
from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.common.types import Episode
from marft.rollout.runner import RolloutRunner
from marft.runs import lock
from marft.runs.episode_files import read_episodes, write_episodes

KEY_FILE = "key.json"
logger = get_logger(__name__)
LOCK_HINT = "then ask again: what it has kept is not played again"
READ_ONLY_ERRORS = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True)
class EvaluationStore:
    """Storage for one evaluation: part files during play, then a single episode file.

    Args:
        folder: folder of evaluations.
        name: name of this evaluation.
        key: digest of all inputs that determine the episodes.
        is_silent: True to log no warnings about damaged files.
    """

    folder: Path
    name: str
    key: str
    is_silent: bool = False

    @property
    def episodes_path(self) -> Path:
        """Path to the final file with every episode."""
        return self.folder / f"{self.name}.parquet"

    @property
    def parts_folder(self) -> Path:
        """Path to the folder with unfinished parts."""
        return self.folder / f"{self.name}.parts"

    def read_episodes(self, attempts: Sequence[Attempt]) -> list[Episode] | None:
        """Return every episode if the files match the key.

        The result is None if a file is missing or damaged, or if the key differs. The key is checked before and after
        the read, so no lock against concurrent writers is needed.
        """
        path = self.folder / f"{self.name}.json"
        try:
            if self._read_key(path) != self.key:
                return None
            episodes = load_episodes(self.episodes_path, attempts)
            return episodes if self._read_key(path) == self.key else None
        except ValueError as error:
            self._warn(f"{path} is not whole ({error}): it is played anew")
            return None

    def read_result(self) -> Mapping[str, Any]:
        """Return the saved evaluation result as a table."""
        return dict(atomic.read_json(self.folder / f"{self.name}.json"))

    def _read_key(self, path: Path) -> object:
        """Return the key in a result file, or None if the file does not exist.

        Raises:
            UserError: the file does not hold an evaluation.
        """
        try:
            table = atomic.read_json(path)
        except FileNotFoundError:
            return None
        if not isinstance(table, dict):
            raise UserError("it is no evaluation")
        return table.get("key")

    def prepare(self, overwrite: bool) -> None:
        """Prepare the folder of parts, deleting parts with another key.

        Args:
            overwrite: delete parts with the same key too.
        """
        try:
            saved_key = atomic.read_json(self.parts_folder / KEY_FILE)
        except (OSError, ValueError):
            saved_key = None
        if overwrite or saved_key != self.key:
            shutil.rmtree(self.parts_folder, ignore_errors=True)
            atomic.write_file(self.parts_folder / KEY_FILE, json.dumps(self.key))

    def read_part(self, number: int, attempts: Sequence[Attempt]) -> list[Episode] | None:
        """Return a part's episodes. The result is None if the part is missing or damaged."""
        path = self._part_path(number)
        if not path.exists():
            return None
        try:
            return load_episodes(path, attempts)
        except ValueError as error:
            self._warn(f"{path} is damaged ({error}): its episodes are played anew")
            return None

    def write_part(self, number: int, attempts: Sequence[Attempt], episodes: Sequence[Episode]) -> list[Episode]:
        """Save a part and return its episodes as read back from the file."""
        write_episodes(self._part_path(number), episodes)
        return load_episodes(self._part_path(number), attempts)

    def finish(self, episodes: Sequence[Episode], evaluation: Mapping[str, object]) -> None:
        """Save every episode to a single file, then the evaluation result beside it.

        An old result file is removed first. Otherwise, after an interruption, it would be mistaken for the result of
        the new episodes.
        """
        result_path = self.folder / f"{self.name}.json"
        result_path.unlink(missing_ok=True)
        write_episodes(self.episodes_path, episodes)
        atomic.write_file(result_path, json.dumps(evaluation, indent=2) + "\n")
        shutil.rmtree(self.parts_folder, ignore_errors=True)

    def _warn(self, text: str) -> None:
        if not self.is_silent:
            logger.warning(text)

    def _part_path(self, number: int) -> Path:
        return self.parts_folder / f"part_{number:06d}.parquet"


def play_attempts(
    rollouts: RolloutRunner,
    attempts: Sequence[Attempt],
    team: Team,
    size: int,
    store: EvaluationStore | None,
    on_done: Callable[[], None],
) -> list[Episode]:
    """Return the episode for each attempt, from saved parts if possible, else by playing.

    Args:
        size: number of attempts in a part.
        store: store of the parts; None saves nothing.
        on_done: called once for each episode.
    """
    results: list[Episode] = []
    for number, start in enumerate(range(0, len(attempts), size)):
        part = attempts[start : start + size]
        episodes = store.read_part(number, part) if store else None
        if episodes is None:
            rollouts.publish(0)  # drops the prefix cache
            episodes = rollouts.play(part, team, lambda _: on_done())
            episodes = store.write_part(number, part, episodes) if store else episodes
        else:
            for _ in episodes:
                on_done()
        results += episodes
    return results


@contextmanager
def lock_folder(folder: Path | None) -> Iterator[str]:
    """Lock a folder against concurrent evaluations and yield the reason why it is not writable, or "".

    Raises:
        UserError: another process evaluates into the folder.
    """
    if folder is None:
        yield ""
        return
    problem = ""
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock.lock_file(folder / "eval.lock", LOCK_HINT))
        except OSError as error:
            if error.errno not in READ_ONLY_ERRORS:
                raise
            problem = (
                f"not all that is asked for is kept in {folder}, and what is played cannot be kept there "
                f"({error.strerror}): allow it, or evaluate a copy of the run"
            )
        yield problem


def load_episodes(path: Path, attempts: Sequence[Attempt]) -> list[Episode]:
    """Read the episodes for given attempts, with full tasks.

    Raises:
        UserError: the file holds episodes of other attempts.
    """
    episodes = read_episodes(path)
    expected = [(attempt.stream, attempt.task.id, attempt.sample) for attempt in attempts]
    if [(episode.stream, episode.task.id, episode.sample) for episode in episodes] != expected:
        raise UserError(f"{path} holds other episodes")
    return [replace(episode, task=attempt.task) for episode, attempt in zip(episodes, attempts, strict=True)]
