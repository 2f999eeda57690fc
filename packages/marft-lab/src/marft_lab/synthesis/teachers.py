"""Teachers of a cold start: a trained team, a recipe's team or the environment's script; and their saved episodes.

A teacher plays the tasks, sessions and rewards of the learner's recipe, with the recipe's seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from marft.agents.game import Attempt
from marft.common import atomic
from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.common.types import Episode
from marft.common.user_modules import MANIFEST, is_export
from marft.common.version import __version__
from marft.config.helpers import without_helpers
from marft.config.load import load_recipe, parse_recipe
from marft.config.run import RunSettings
from marft.envs.scripted_policy import ScriptedPolicy
from marft.envs.tasks import digest_tasks, read_tasks
from marft.evaluation.evaluate import ProgressCallback
from marft.evaluation.session import BASE, EPISODE_KEYS, ROLLOUT_KEYS, find_checkpoint
from marft.evaluation.store import load_episodes
from marft.runs.changes import hash_user_code
from marft.runs.episode_files import write_episodes
from marft.runs.export.manifest import load_export
from marft.runs.export.recipe import check_bases, load_settings
from marft.runs.run_files import STATE_FILE
from marft.runs.run_folder import RunFolder
from marft.runs.state import checkpoint_name
from marft.trainer.learner import TRACES
from marft_lab.synthesis.overrides import SCRIPTS, check_teacher
from marft_lab.synthesis.settings import SynthesisSettings

if TYPE_CHECKING:
    pass

logger = get_logger(__name__)
ENVIRONMENT_KEYS = ("environment", "rewards", "seed", "rollout", "curriculum", "name", "output", "device", "threads")
Play = Callable[[Sequence[Attempt]], list[Episode]]
IDENTITY_FILE = "synthesis.json"


@dataclass(frozen=True, slots=True, eq=False)
class Teacher:
    """Teacher.

    Args:
        run: recipe of the teacher's team, with the learner's environment.
        description: description for rows: kind, name, version, and digests of weights and recipe.
        weights: checkpoint with the weights; None for the recipe's weights.
        script: script that replaces models.
        check: receives the digests of the models before the first episode; may raise an error.
    """

    run: RunSettings
    description: Mapping[str, object]
    weights: Path | None = None
    script: ScriptedPolicy | None = None
    check: Callable[[Mapping[str, str]], None] = lambda _: None


def load_teacher(run: RunSettings, trust_code: bool = False) -> Teacher:
    """Return the teacher named in a recipe.

    Args:
        run: settings of the run.
        trust_code: True to allow an export to name foreign code, programs and servers.

    Raises:
        UserError: missing or unknown teacher, or a teacher that does not fit the recipe's environment.
    """
    named = SynthesisSettings.from_run(run).teacher
    if not named:
        raise UserError(
            "synthesis.teacher: nobody is named who plays; give --teacher scripts (the environment's own), the folder "
            "of a run, of a checkpoint or of an export, or a recipe"
        )
    if named == SCRIPTS:
        return _script_teacher(run)
    path = Path(named)
    if is_export(path):
        export = load_export(path)
        teacher_run, digest = load_settings(export, trust_code=trust_code), _digest((path / MANIFEST).read_bytes())
        description = {
            "kind": "export",
            "name": path.name,
            "checkpoint": export.manifest.checkpoint.name,
            "weights": digest,
        }
        return _team_teacher(run, teacher_run, description, None, lambda digests: check_bases(export, digests))
    checkpoint = "last"
    if path.parent.name == "checkpoints" and (path / STATE_FILE).is_file():
        path, checkpoint = path.parent.parent, path.name
    if path.is_dir():
        folder = RunFolder.open(path)
        teacher_run = folder.relocated_settings(objects=run.python_objects.values())
        weights = find_checkpoint(teacher_run, folder, checkpoint if folder.saved_steps() else BASE)
        if weights is None:
            raise UserError(f"--teacher {named}: the run has no checkpoint yet, and so nothing that it has learned")
        description = {"kind": "checkpoint", "name": teacher_run.name, "checkpoint": weights.name}
        return _team_teacher(
            run, teacher_run, {**description, "weights": _digest((weights / STATE_FILE).read_bytes())}, weights
        )
    check_teacher(named)
    teacher_run = load_recipe(path, given=run.python_objects.values())
    return _team_teacher(run, teacher_run, {"kind": "recipe", "name": teacher_run.name})


def _script_teacher(run: RunSettings) -> Teacher:
    skill = SynthesisSettings.from_run(run).skill
    script = run.environment.script(skill)
    if script is None:
        raise UserError(
            f"--teacher {SCRIPTS}: environment {run.environment.name!r} has no script; name a run, export or recipe"
        )
    kind = type(run.environment)
    name = f"{kind.__module__}:{kind.__qualname__}.script"
    description = {"kind": SCRIPTS, "name": name, "skill": skill}
    return Teacher(run, {**description, **_source_digests(run)}, script=script)  # type: ignore[arg-type]


def _team_teacher(
    run: RunSettings,
    teacher_run: RunSettings,
    description: Mapping[str, object],
    weights: Path | None = None,
    check: Callable[[Mapping[str, str]], None] = lambda _: None,
) -> Teacher:
    """Return a team of models as teacher, in the recipe's environment.

    Raises:
        UserError: different roles, or a recipe that does not fit the environment.
    """
    named = SynthesisSettings.from_run(run).teacher
    roles, teacher_roles = ({agent.role for agent in settings.agents} for settings in (run, teacher_run))
    if roles != teacher_roles:
        raise UserError(
            f"--teacher {named}: its agents are {', '.join(sorted(teacher_roles))}, and those of the recipe "
            f"{', '.join(sorted(roles))}; rows are made for each role of what the same one said, so call them alike"
        )
    table, world = (settings.model_dump(mode="json", exclude_none=True) for settings in (teacher_run, run))
    own_settings = {key: value for key, value in table.items() if key not in ENVIRONMENT_KEYS}
    given = {**run.python_objects, **teacher_run.python_objects}.values()
    changed = {**own_settings, **{key: world[key] for key in ENVIRONMENT_KEYS if key in world}}
    combined = parse_recipe(changed, source=f"--teacher {named}, in the world of the recipe", given=given)
    return Teacher(combined, {**description, **_source_digests(combined)}, weights, None, check)


def _source_digests(run: RunSettings) -> dict[str, str]:
    """Return digests of the recipe and code behind the episodes."""
    table: dict[str, object] = run.model_dump(mode="json", include=EPISODE_KEYS)
    return {"recipe": atomic.digest_of_json([table, hash_user_code(run)])[:16], "version": __version__}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def open_teacher(teacher: Teacher) -> Iterator[Play]:
    """Open a teacher's rollouts, and yield a function that plays attempts in order.

    Raises:
        UserError: a requirement of the teacher is missing.
    """
    if teacher.script is not None:
        from marft_lab.scripted_team import ScriptedTeam

        with ScriptedTeam(teacher.run, teacher.script) as team:
            yield lambda attempts: list(team.play_attempts(attempts))
        return
    from marft.rollout.local_runner import open_rollout_runner

    with open_rollout_runner(without_helpers(teacher.run)) as rollouts:
        teacher.check(rollouts.models.compute_digests())
        rollouts.load_checkpoint(teacher.weights)

        def play(attempts: Sequence[Attempt]) -> list[Episode]:
            rollouts.publish(0)  # clears the prefix cache, so that a part is the same at any time
            return rollouts.play(attempts)

        yield play


def build_attempts(run: RunSettings) -> list[Attempt]:
    """Return the attempts to play: training tasks, each several times.

    The random stream is that of traces. The episodes are never used for ratios, and a random session is the same when
    it is replayed.

    Raises:
        UserError: unreadable tasks.
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
        "recipe": atomic.digest_of_json(tables),
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
        UserError: different settings than before, damaged state file, or existing folder without ``overwrite``.
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
        raise UserError(f"{path} is damaged ({error}); begin anew (--overwrite), or put a copy back") from error
    if not isinstance(saved, dict):
        raise UserError(f"{path} is damaged (it holds no object); begin anew (--overwrite), or put a copy back")
    changed = [key for key in identity if saved.get(key) != identity[key]]
    if changed:
        raise UserError(
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
) -> list[Episode]:
    """Return every attempt's episode, from saved parts or by playing; each finished part is saved.

    Failed episodes are played again.

    Args:
        teacher: teacher.
        folder: run folder.
        attempts: attempts to play.
        size: attempts per part.
        advance: progress callback.

    Raises:
        UserError: a requirement of the teacher is missing.
    """
    collected = list[Episode]()
    advance(len(attempts))
    with ExitStack() as exit_stack:
        play: Play | None = None
        for number, start in enumerate(range(0, len(attempts), size), 1):
            part = attempts[start : start + size]
            path = folder.episodes / f"{checkpoint_name(number)}.parquet"
            episodes = _load_part(path, part) or []
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


def _load_part(path: Path, part: Sequence[Attempt]) -> list[Episode] | None:
    if not path.is_file():
        return None
    try:
        return load_episodes(path, part)
    except ValueError as error:
        logger.warning(f"{path} is damaged ({error}): its episodes are played anew")
        return None
