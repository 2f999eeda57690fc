"""Evaluations that are kept while they are played: in parts, so that one that is killed goes on where it was.

Parts are played one after the other, each on an engine that remembers nothing of the one before: so what is found is
the same, bit for bit where the engine is, whether it was played in one go, gone on with, or read.
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
    """Where the episodes of one evaluation are kept: parts as they are played, and then one file of all.

    Args:
        folder: of evaluations.
        name: of this one.
        key: a digest of all that decides what is played.
        note: told what is damaged.
    """

    folder: Path
    name: str
    key: str
    note: Note

    @property
    def whole(self) -> Path:
        """The episodes, once all are played."""
        return self.folder / f"{self.name}.parquet"

    @property
    def parts(self) -> Path:
        """The folder of parts, until then."""
        return self.folder / f"{self.name}.parts"

    def read(self, attempts: Sequence[Attempt]) -> list[Episode] | None:
        """All episodes, where they were played with this key, and are whole. Nobody need be kept from writing there
        meanwhile: what stands beside them is looked at before and after."""
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
        """What the episodes came to, as it was written beside them."""
        return dict(atomic.read_json(self.folder / f"{self.name}.json"))

    def _key_in(self, path: Path) -> object:
        """
        Raises:
            ValueError: it is no evaluation.
        """
        try:
            table = atomic.read_json(path)
        except FileNotFoundError:
            return None
        if not isinstance(table, dict):
            raise ValueError("it is no evaluation")
        return table.get("key")

    def begin(self, again: bool) -> None:
        """Keep parts that were played with this key, and no others."""
        try:
            known = atomic.read_json(self.parts / KEY)
        except (OSError, ValueError):
            known = None
        if again or known != self.key:
            shutil.rmtree(self.parts, ignore_errors=True)
            atomic.write_file(self.parts / KEY, json.dumps(self.key))

    def read_part(self, number: int, attempts: Sequence[Attempt]) -> list[Episode] | None:
        """The episodes of a part; None where it was not played, or is damaged."""
        path = self._part(number)
        if not path.exists():
            return None
        try:
            return episodes_of(path, attempts)
        except ValueError as error:
            self.note(f"{path} is damaged ({error}): its episodes are played anew")
            return None

    def write_part(self, number: int, attempts: Sequence[Attempt], episodes: Sequence[Episode]) -> list[Episode]:
        """Keep a part → its episodes as they are read from now on."""
        write_episodes(self._part(number), episodes)
        return episodes_of(self._part(number), attempts)

    def finish(self, episodes: Sequence[Episode], evaluation: Mapping[str, Any]) -> None:
        """Put all episodes into one file, and then what they come to beside it: what stood there of another key goes
        first, or it would be taken for what these come to where this is cut short."""
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
    """Every attempt, in parts of ``size``: read where it is kept, else played.

    Args:
        place: where parts are kept; None keeps nothing.
        on_done: called once an episode.
    """
    found: list[Episode] = []
    for number, start in enumerate(range(0, len(attempts), size)):
        part = attempts[start : start + size]
        episodes = place.read_part(number, part) if place else None
        if episodes is None:
            rollouts.publish(0)  # which forgets prompts that were read before
            episodes = rollouts.play(part, team, lambda _: on_done())
            episodes = place.write_part(number, part, episodes) if place else episodes
        else:
            for _ in episodes:
                on_done()
        found += episodes
    return found


def key_of(table: Mapping[str, Any]) -> str:
    """A digest of what decides what is played."""
    return hashlib.sha256(json.dumps(table, sort_keys=True, default=str).encode()).hexdigest()


@contextmanager
def alone(folder: Path | None) -> Iterator[str]:
    """Keep every other process from evaluating there → why nothing that is played can be kept there; "" where it can.

    Raises:
        ValueError: one does.
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
    """The episodes of these attempts, with the tasks that they are of.

    Raises:
        ValueError: they are not what the file holds.
    """
    episodes = read_episodes(path)
    asked = [(attempt.stream, attempt.task.id, attempt.sample) for attempt in attempts]
    if [(episode.stream, episode.task.id, episode.sample) for episode in episodes] != asked:
        raise ValueError(f"{path} holds other episodes")
    return [replace(episode, task=attempt.task) for episode, attempt in zip(episodes, attempts, strict=True)]
