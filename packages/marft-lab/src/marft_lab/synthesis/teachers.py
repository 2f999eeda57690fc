"""Teachers of a cold start: a trained team, the team of a recipe, or the environment's script.

A teacher plays the tasks, sessions and rewards of the learner's recipe, with the recipe's seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.agents.game import Attempt
from marft.common.types import Episode
from marft.common.user_modules import MANIFEST, is_export
from marft.common.version import __version__
from marft.config.helpers import without_helpers
from marft.config.load import load_recipe, parse_recipe
from marft.config.run import RunSettings
from marft.envs.scripted_policy import ScriptedPolicy
from marft.evaluation.session import BASE, EPISODE_KEYS, find_checkpoint
from marft.runs.checkpoints import load_policies
from marft.runs.export.loader import check_bases, load_settings
from marft.runs.export.manifest import load_export
from marft.runs.run_folder import RunFolder
from marft.runs.state_schema import STATE_FILE, read_learned_prompts
from marft.runs.user_code import hash_user_code
from marft_lab.synthesis.overrides import SCRIPTS, check_teacher
from marft_lab.synthesis.settings import SynthesisSettings

if TYPE_CHECKING:
    from marft.models.policy_registry import PolicyRegistry

ENVIRONMENT_KEYS = ("environment", "rewards", "seed", "rollout", "curriculum", "name", "output", "device", "threads")
Play = Callable[[Sequence[Attempt]], list[Episode]]


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
        ValueError: missing or unknown teacher, or a teacher that does not fit the recipe's environment.
    """
    named = SynthesisSettings.from_run(run).teacher
    if not named:
        raise ValueError(
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
            raise ValueError(f"--teacher {named}: the run has no checkpoint yet, and so nothing that it has learned")
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
        raise ValueError(
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
        ValueError: different roles, or a recipe that does not fit the environment.
    """
    named = SynthesisSettings.from_run(run).teacher
    roles, teacher_roles = ({agent.role for agent in settings.agents} for settings in (run, teacher_run))
    if roles != teacher_roles:
        raise ValueError(
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
    table: dict[str, Any] = run.model_dump(mode="json", include=EPISODE_KEYS)
    content = json.dumps([table, hash_user_code(run)], sort_keys=True, default=str)
    return {"recipe": _digest(content.encode()), "version": __version__}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def open_teacher(teacher: Teacher) -> Iterator[Play]:
    """Open a teacher's rollouts, and yield a function that plays attempts in order.

    Raises:
        ValueError: a requirement of the teacher is missing.
    """
    if teacher.script is not None:
        from marft_lab.scripted_team import ScriptedTeam

        with ScriptedTeam(teacher.run, teacher.script) as team:
            yield lambda attempts: list(team.play_attempts(attempts))
        return
    from marft.rollout.local_runner import open_rollouts

    with open_rollouts(without_helpers(teacher.run)) as rollouts:
        models: PolicyRegistry = rollouts.models
        teacher.check(models.compute_digests())
        if teacher.weights is not None:
            load_policies(teacher.weights, models, dict.fromkeys(teacher.run.trained_policies))
            rollouts.instruct(read_learned_prompts(teacher.weights))

        def play(attempts: Sequence[Attempt]) -> list[Episode]:
            rollouts.publish(0)  # clears the prefix cache, so that a part is the same at any time
            return rollouts.play(attempts)

        yield play
