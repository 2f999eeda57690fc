"""Evaluation store: saves episodes in parts to resume interrupted evaluations.

Parts are played one after the other, each on an engine with an empty prefix cache. So the result is the same for an
uninterrupted, a resumed or a saved evaluation. It is identical bit for bit if the engine is deterministic.
"""

from __future__ import annotations

import errno
import hashlib
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
from marft.common.types import Episode
from marft.rollout.playing import Rollouts
from marft.runs import lock
from marft.runs.episodes import read_episodes, write_episodes

KEY = "key.json"
OTHERWISE = "then ask again: what it has kept is not played again"
NO_WRITING = (errno.EROFS, errno.EACCES, errno.EPERM)
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Place:
    """Storage for one evaluation: part files during play, then a single episode file.

    Args:
        folder: folder of evaluations.
        name: name of this evaluation.
        key: digest of all inputs that determine the episodes.
        note: receives messages about damaged files.
    """

    folder: Path
    name: str
    key: str
    note: Note

    @property
    def whole(self) -> Path:
        """Path to the final file with every episode."""
        return self.folder / f"{self.name}.parquet"

    @property
    def parts(self) -> Path:
        """Path to the folder with unfinished parts."""
        return self.folder / f"{self.name}.parts"

    def read(self, attempts: Sequence[Attempt]) -> list[Episode] | None:
        """Return every episode if the files match the key.

        The result is None if a file is missing or damaged, or if the key differs. The key is checked before and after
        the read, so no lock against concurrent writers is needed.
        """
        path = self.folder / f"{self.name}.json"
        try:
            if self._key_in(path) != self.key:
                return None
            episodes = episodes_of(self.whole, attempts)
            return episodes if self._key_in(path) == self.key else None
        except ValueError as error:
            self.note(f"{path} is not whole ({error}): it is played anew")
            return None

    def told(self) -> Mapping[str, Any]:
        """Return the saved evaluation result as a table."""
        return dict(atomic.read_json(self.folder / f"{self.name}.json"))

    def _key_in(self, path: Path) -> object:
        """Return the key in a result file, or None if the file does not exist.

        Raises:
            ValueError: the file does not hold an evaluation.
        """
        try:
            table = atomic.read_json(path)
        except FileNotFoundError:
            return None
        if not isinstance(table, dict):
            raise ValueError("it is no evaluation")
        return table.get("key")

    def begin(self, again: bool) -> None:
        """Prepare the folder of parts, deleting parts with another key.

        Args:
            again: delete parts with the same key too.
        """
        try:
            known = atomic.read_json(self.parts / KEY)
        except (OSError, ValueError):
            known = None
        if again or known != self.key:
            shutil.rmtree(self.parts, ignore_errors=True)
            atomic.write_file(self.parts / KEY, json.dumps(self.key))

    def read_part(self, number: int, attempts: Sequence[Attempt]) -> list[Episode] | None:
        """Return a part's episodes. The result is None if the part is missing or damaged."""
        path = self._part(number)
        if not path.exists():
            return None
        try:
            return episodes_of(path, attempts)
        except ValueError as error:
            self.note(f"{path} is damaged ({error}): its episodes are played anew")
            return None

    def write_part(self, number: int, attempts: Sequence[Attempt], episodes: Sequence[Episode]) -> list[Episode]:
        """Save a part and return its episodes as read back from the file."""
        write_episodes(self._part(number), episodes)
        return episodes_of(self._part(number), attempts)

    def finish(self, episodes: Sequence[Episode], evaluation: Mapping[str, Any]) -> None:
        """Save every episode to a single file, then the evaluation result beside it.

        An old result file is removed first. Otherwise, after an interruption, it would be mistaken for the result of
        the new episodes.
        """
        told = self.folder / f"{self.name}.json"
        told.unlink(missing_ok=True)
        write_episodes(self.whole, episodes)
        atomic.write_file(told, json.dumps(evaluation, indent=2) + "\n")
        shutil.rmtree(self.parts, ignore_errors=True)

    def _part(self, number: int) -> Path:
        return self.parts / f"part_{number:06d}.parquet"


def played(
    rollouts: Rollouts, attempts: Sequence[Attempt], team: Team, size: int, place: Place | None,
    on_done: Callable[[], None],
) -> list[Episode]:  # fmt: skip
    """Return the episode for each attempt, from saved parts if possible, else by playing.

    Args:
        size: number of attempts in a part.
        place: store of the parts; None saves nothing.
        on_done: called once for each episode.
    """
    found: list[Episode] = []
    for number, start in enumerate(range(0, len(attempts), size)):
        part = attempts[start : start + size]
        episodes = place.read_part(number, part) if place else None
        if episodes is None:
            rollouts.publish(0)  # drops the prefix cache
            episodes = rollouts.play(part, team, lambda _: on_done())
            episodes = place.write_part(number, part, episodes) if place else episodes
        else:
            for _ in episodes:
                on_done()
        found += episodes
    return found


def key_of(table: Mapping[str, Any]) -> str:
    """Return a digest over the inputs that determine the episodes."""
    return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()


@contextmanager
def alone(folder: Path | None) -> Iterator[str]:
    """Lock a folder against concurrent evaluations and yield the reason why it is not writable, or "".

    Raises:
        ValueError: another process evaluates into the folder.
    """
    if folder is None:
        yield ""
        return
    cannot = ""
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(lock.held(folder / "eval.lock", OTHERWISE))
        except OSError as error:
            if error.errno not in NO_WRITING:
                raise
            cannot = (
                f"not all that is asked for is kept in {folder}, and what is played cannot be kept there "
                f"({error.strerror}): allow it, or evaluate a copy of the run"
            )
        yield cannot


def episodes_of(path: Path, attempts: Sequence[Attempt]) -> list[Episode]:
    """Read the episodes for given attempts, with full tasks.

    Raises:
        ValueError: the file holds episodes of other attempts.
    """
    episodes = read_episodes(path)
    asked = [(attempt.stream, attempt.task.id, attempt.sample) for attempt in attempts]
    if [(episode.stream, episode.task.id, episode.sample) for episode in episodes] != asked:
        raise ValueError(f"{path} holds other episodes")
    return [replace(episode, task=attempt.task) for episode, attempt in zip(episodes, attempts, strict=True)]
