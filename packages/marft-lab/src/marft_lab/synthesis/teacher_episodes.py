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
from marft.envs.tasks import digest_tasks, read_tasks
from marft.evaluation.evaluate import ProgressCallback
from marft.evaluation.session import EPISODE_KEYS, ROLLOUT_KEYS
from marft.evaluation.store import load_episodes
from marft.runs.checkpoints import checkpoint_name
from marft.runs.episode_files import write_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.sft import TRACES
from marft_lab.synthesis.settings import SynthesisSettings
from marft_lab.synthesis.teachers import Play, Teacher, open_teacher

IDENTITY_FILE = "synthesis.json"


def build_attempts(run: RunSettings) -> list[Attempt]:
    """Return the attempts to play: training tasks, each several times.

    The random stream is that of traces. The episodes are never used for ratios, and a random session is the same when
    it is replayed.

    Raises:
        ValueError: unreadable tasks.
    """
    settings = SynthesisSettings.from_run(run)
    tasks = read_tasks(run.environment, "train")[: settings.tasks or None]
    return [Attempt(task, TRACES, sample) for task in tasks for sample in range(settings.attempts)]


def episode_identity(run: RunSettings, teacher: Teacher, attempts: Sequence[Attempt]) -> dict[str, object]:
    """Return the settings that determine the episodes, for a check on resume."""
    settings = SynthesisSettings.from_run(run)
    tables = [
        run.model_dump(mode="json", include=EPISODE_KEYS),
        run.rollout.model_dump(mode="json", include=ROLLOUT_KEYS),
    ]
    return {
        "teacher": dict(teacher.description),
        "recipe": hashlib.sha256(json.dumps(tables, sort_keys=True, default=str).encode()).hexdigest(),
        "tasks": digest_tasks(list({attempt.task.id: attempt.task for attempt in attempts}.values())),
        "attempts": settings.attempts,
        "save_every": settings.save_every,
    }


def start_or_resume(
    run: RunSettings, folder: RunFolder, identity: Mapping[str, object], *, resume: bool, overwrite: bool
) -> None:
    """Create the run folder, or check that the folder belongs to the same synthesis.

    Args:
        run: settings of the run.
        folder: run folder.
        identity: settings that determine the episodes.
        resume: True to resume.
        overwrite: True to replace an existing run.

    Raises:
        ValueError: different settings than before, damaged state file, or existing folder without ``overwrite``.
    """
    path = folder.path / IDENTITY_FILE
    folder.check_links()
    atomic.remove_stale_dirs(folder.path)
    if not resume:
        folder.check_free(overwrite)
        folder.begin(run, overwrite=overwrite)
        atomic.write_file(path, json.dumps(identity, indent=2) + "\n")
        return
    try:
        saved = atomic.read_json(path) if path.is_file() else {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); begin anew (--overwrite), or put a copy back") from error
    if not isinstance(saved, dict):
        raise ValueError(f"{path} is damaged (it holds no object); begin anew (--overwrite), or put a copy back")
    changed = [key for key in identity if saved.get(key) != identity[key]]
    if changed:
        raise ValueError(
            f"{folder.path} was begun with other settings ({', '.join(changed)}): what was played is not what would be "
            "played now. Begin anew (--overwrite), or give this one another name (--name …)"
        )
    atomic.remove_temp_files(folder.episodes)
    folder.write_config(run)


def play_or_load(
    teacher: Teacher,
    folder: RunFolder,
    attempts: Sequence[Attempt],
    size: int,
    advance: ProgressCallback,
    note: Callable[[str], None],
) -> list[Episode]:
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
    collected = list[Episode]()
    advance(len(attempts))
    with ExitStack() as exit_stack:
        play: Play | None = None
        for number, start in enumerate(range(0, len(attempts), size), 1):
            part = attempts[start : start + size]
            path = folder.episodes / f"{checkpoint_name(number)}.parquet"
            episodes = _load_part(path, part, note) or []
            scored = {index: episode for index, episode in enumerate(episodes) if episode.is_scored}
            missing = [index for index in range(len(part)) if index not in scored]
            if missing:
                play = play or exit_stack.enter_context(open_teacher(teacher))
                scored |= dict(zip(missing, play([part[index] for index in missing]), strict=True))
                write_episodes(path, [scored[index] for index in range(len(part))])
                episodes = load_episodes(path, part)
            collected += episodes
            for _ in part:
                advance()
    return collected


def _load_part(path: Path, part: Sequence[Attempt], note: Callable[[str], None]) -> list[Episode] | None:
    if not path.is_file():
        return None
    try:
        return load_episodes(path, part)
    except ValueError as error:
        note(f"{path} is damaged ({error}): its episodes are played anew")
        return None
