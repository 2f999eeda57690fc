"""What a teacher plays, kept in parts in the folder of a run: what was stopped goes on where it was."""

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
    """What is played: training tasks, each so often. The stream is that of traces: what is played is never trained
    with ratios, and a session that is random is the same when it is told again.

    Raises:
        ValueError: the tasks cannot be read.
    """
    asked = SynthesisSettings.of(run)
    tasks = tasks_of(run.environment, "train")[: asked.tasks or None]
    return [Attempt(task, TRACES, sample) for task in tasks for sample in range(asked.attempts)]


def begun_with(run: RunSettings, teacher: Teacher, attempts: Sequence[Attempt]) -> dict[str, object]:
    """What decides what is played, for whoever goes on."""
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
    """Make the folder this cold start's, or see that it is.

    Raises:
        ValueError: it is another one's.
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
    """Every attempt: read where it is kept, else played, and kept as soon as its part is over. One that could not be
    scored is played again.

    Raises:
        ValueError: something that the teacher needs cannot be had.
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
