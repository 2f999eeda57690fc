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
from marft.common.user_modules import TEAM, is_export
from marft.common.version import __version__
from marft.config.consulting import without_helpers
from marft.config.load import load_recipe, parse_recipe
from marft.config.run import RunSettings
from marft.envs.scripts import Script
from marft.evaluation.session import BASE, PLAYS, find_checkpoint
from marft.runs.checkpoints import load_policies
from marft.runs.code import digests_of_code
from marft.runs.export.loading import check_bases, settings_of
from marft.runs.export.manifest import load_export
from marft.runs.folder import RunFolder
from marft.runs.stated import STATE, told_at
from marft_lab.synthesis.asked import SCRIPTS, check_teacher
from marft_lab.synthesis.settings import SynthesisSettings

if TYPE_CHECKING:
    from marft.models.pool import Models

WORLD = ("environment", "rewards", "seed", "rollout", "curriculum", "name", "output", "device", "threads")
Play = Callable[[Sequence[Attempt]], list[Episode]]


@dataclass(frozen=True, slots=True, eq=False)
class Teacher:
    """Teacher.

    Args:
        run: recipe of the teacher's team, with the learner's environment.
        about: description for rows: kind, name, version, and digests of weights and recipe.
        weights: checkpoint with the weights; None for the recipe's weights.
        script: script that replaces models.
        check: receives the digests of the models before the first episode; may raise an error.
    """

    run: RunSettings
    about: Mapping[str, object]
    weights: Path | None = None
    script: Script | None = None
    check: Callable[[Mapping[str, str]], None] = lambda _: None


def teacher_of(run: RunSettings, trust_code: bool = False) -> Teacher:
    """Return the teacher named in a recipe.

    Args:
        run: settings of the run.
        trust_code: True to allow an export to name foreign code, programs and servers.

    Raises:
        ValueError: missing or unknown teacher, or a teacher that does not fit the recipe's environment.
    """
    named = SynthesisSettings.of(run).teacher
    if not named:
        raise ValueError(
            "synthesis.teacher: nobody is named who plays; give --teacher scripts (the environment's own), the folder "
            "of a run, of a checkpoint or of an export, or a recipe"
        )
    if named == SCRIPTS:
        return _script(run)
    path = Path(named)
    if is_export(path):
        export = load_export(path)
        theirs, about = settings_of(export, trust_code=trust_code), _digest((path / TEAM).read_bytes())
        told = {"kind": "export", "name": path.name, "checkpoint": export.manifest.checkpoint.name, "weights": about}
        return _team(run, theirs, told, None, lambda digests: check_bases(export, digests))
    checkpoint = "last"
    if path.parent.name == "checkpoints" and (path / STATE).is_file():
        path, checkpoint = path.parent.parent, path.name
    if path.is_dir():
        folder = RunFolder.open(path)
        theirs = folder.settings_in_place(given=run.given.values())
        weights = find_checkpoint(theirs, folder, checkpoint if folder.saved_steps() else BASE)
        if weights is None:
            raise ValueError(f"--teacher {named}: the run has no checkpoint yet, and so nothing that it has learned")
        told = {"kind": "checkpoint", "name": theirs.name, "checkpoint": weights.name}
        return _team(run, theirs, {**told, "weights": _digest((weights / STATE).read_bytes())}, weights)
    check_teacher(named)
    theirs = load_recipe(path, given=run.given.values())
    return _team(run, theirs, {"kind": "recipe", "name": theirs.name})


def _script(run: RunSettings) -> Teacher:
    skill = SynthesisSettings.of(run).skill
    script = run.environment.script(skill)
    if script is None:
        raise ValueError(
            f"--teacher {SCRIPTS}: environment {run.environment.name!r} has no script; name a run, export or recipe"
        )
    kind = type(run.environment)
    name = f"{kind.__module__}:{kind.__qualname__}.script"
    about = {"kind": SCRIPTS, "name": name, "skill": skill}
    return Teacher(run, {**about, **_played_by(run)}, script=script)  # type: ignore[arg-type]


def _team(
    run: RunSettings, theirs: RunSettings, about: Mapping[str, object], weights: Path | None = None,
    check: Callable[[Mapping[str, str]], None] = lambda _: None,
) -> Teacher:  # fmt: skip
    """Return a team of models as teacher, in the recipe's environment.

    Raises:
        ValueError: different roles, or a recipe that does not fit the environment.
    """
    named = SynthesisSettings.of(run).teacher
    roles, others = ({agent.role for agent in one.agents} for one in (run, theirs))
    if roles != others:
        raise ValueError(
            f"--teacher {named}: its agents are {', '.join(sorted(others))}, and those of the recipe "
            f"{', '.join(sorted(roles))}; rows are made for each role of what the same one said, so call them alike"
        )
    table, world = (one.model_dump(mode="json", exclude_none=True) for one in (theirs, run))
    kept = {key: value for key, value in table.items() if key not in WORLD}
    given = {**run.given, **theirs.given}.values()
    changed = {**kept, **{key: world[key] for key in WORLD if key in world}}
    played = parse_recipe(changed, source=f"--teacher {named}, in the world of the recipe", given=given)
    return Teacher(played, {**about, **_played_by(played)}, weights, None, check)


def _played_by(run: RunSettings) -> dict[str, str]:
    """Return digests of the recipe and code behind the episodes."""
    table: dict[str, Any] = run.model_dump(mode="json", include=PLAYS)
    words = json.dumps([table, digests_of_code(run)], sort_keys=True, default=str)
    return {"recipe": _digest(words.encode()), "version": __version__}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


@contextmanager
def playing(teacher: Teacher) -> Iterator[Play]:
    """Open a teacher's rollouts, and yield a function that plays attempts in order.

    Raises:
        ValueError: a requirement of the teacher is missing.
    """
    if teacher.script is not None:
        from marft_lab.scripted import ScriptedTeam

        with ScriptedTeam(teacher.run, teacher.script) as team:
            yield lambda attempts: list(team.attempt(attempts))
        return
    from marft.rollout.rollouts import open_rollouts

    with open_rollouts(without_helpers(teacher.run)) as rollouts:
        models: Models = rollouts.models
        teacher.check(models.digests())
        if teacher.weights is not None:
            load_policies(teacher.weights, models, dict.fromkeys(teacher.run.trained_policies))
            rollouts.instruct(told_at(teacher.weights))

        def play(attempts: Sequence[Attempt]) -> list[Episode]:
            rollouts.publish(0)  # clears the prefix cache, so that a part is the same at any time
            return rollouts.play(attempts)

        yield play
