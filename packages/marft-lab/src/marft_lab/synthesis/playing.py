"""Episodes of a teacher, saved in parts in the run folder for a later resume."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from marft.agents.game import Attempt
from marft.common import atomic
from marft.common.types import Episode
from marft.config.run import RunSettings
from marft.envs.tasks import digest_of, tasks_of
from marft.evaluation.evaluate import Advance
from marft.evaluation.keeping import episodes_of
from marft.evaluation.session import LIMITS, PLAYS
from marft.runs.checkpoints import name_of
from marft.runs.episodes import write_episodes
from marft.runs.folder import RunFolder
from marft.trainer.supervised import TRACES
from marft_lab.synthesis.settings import SynthesisSettings
from marft_lab.synthesis.teachers import Play, Teacher, playing

BEGUN = "synthesis.json"


def attempts_of(run: RunSettings) -> list[Attempt]:
    """Return the attempts to play: training tasks, each several times.

    The random stream is that of traces. The episodes are never used for ratios, and a random session is the same when
    it is replayed.

    Raises:
        ValueError: unreadable tasks.
    """
    asked = SynthesisSettings.of(run)
    tasks = tasks_of(run.environment, "train")[: asked.tasks or None]
    return [Attempt(task, TRACES, sample) for task in tasks for sample in range(asked.attempts)]


def begun_with(run: RunSettings, teacher: Teacher, attempts: Sequence[Attempt]) -> dict[str, object]:
    """Return the settings that determine the episodes, for a check on resume."""
    asked = SynthesisSettings.of(run)
    tables = [run.model_dump(mode="json", include=PLAYS), run.rollout.model_dump(mode="json", include=LIMITS)]
    return {
        "teacher": dict(teacher.about),
        "recipe": hashlib.sha256(json.dumps(tables, sort_keys=True, default=str).encode()).hexdigest(),
        "tasks": digest_of(list({one.task.id: one.task for one in attempts}.values())),
        "attempts": asked.attempts,
        "played_together": asked.played_together,
    }


def begin(run: RunSettings, folder: RunFolder, begun: Mapping[str, object], *, resume: bool, overwrite: bool) -> None:
    """Create the run folder, or check that the folder belongs to the same synthesis.

    Args:
        run: settings of the run.
        folder: run folder.
        begun: settings that determine the episodes.
        resume: True to resume.
        overwrite: True to replace an existing run.

    Raises:
        ValueError: different settings than before, damaged state file, or existing folder without ``overwrite``.
    """
    path = folder.path / BEGUN
    folder.refuse_links()
    atomic.remove_abandoned(folder.path)
    if not resume:
        folder.check_free(overwrite)
        folder.begin(run, overwrite=overwrite)
        atomic.write_file(path, json.dumps(begun, indent=2) + "\n")
        return
    try:
        before = atomic.read_json(path) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); begin anew (--overwrite), or put a copy back") from error
    if not isinstance(before, dict):
        raise ValueError(f"{path} is damaged (it holds no object); begin anew (--overwrite), or put a copy back")
    other = [key for key in begun if before.get(key) != begun[key]]
    if other:
        raise ValueError(
            f"{folder.path} was begun with other settings ({', '.join(other)}): what was played is not what would be "
            "played now. Begin anew (--overwrite), or give this one another name (--name …)"
        )
    atomic.remove_drafts(folder.episodes)
    folder.write_config(run)


def played(
    teacher: Teacher, folder: RunFolder, attempts: Sequence[Attempt], size: int, advance: Advance,
    note: Callable[[str], None],
) -> list[Episode]:  # fmt: skip
    """Return every attempt's episode, from saved parts or by playing; each finished part is saved.

    Failed episodes are played again.

    Args:
        teacher: teacher.
        folder: run folder.
        attempts: attempts to play.
        size: attempts per part.
        advance: progress callback.
        note: callback for warnings.

    Raises:
        ValueError: a requirement of the teacher is missing.
    """
    found = list[Episode]()
    advance(len(attempts))
    with ExitStack() as opened:
        play: Play | None = None
        for number, start in enumerate(range(0, len(attempts), size), 1):
            part = attempts[start : start + size]
            path = folder.episodes / f"{name_of(number)}.parquet"
            episodes = _kept(path, part, note) or []
            scored = {place: episode for place, episode in enumerate(episodes) if episode.scored}
            left = [place for place in range(len(part)) if place not in scored]
            if left:
                play = play or opened.enter_context(playing(teacher))
                scored |= dict(zip(left, play([part[place] for place in left]), strict=True))
                write_episodes(path, [scored[place] for place in range(len(part))])
                episodes = episodes_of(path, part)
            found += episodes
            for _ in part:
                advance()
    return found


def _kept(path: Path, part: Sequence[Attempt], note: Callable[[str], None]) -> list[Episode] | None:
    if not path.is_file():
        return None
    try:
        return episodes_of(path, part)
    except ValueError as error:
        note(f"{path} is damaged ({error}): its episodes are played anew")
        return None
