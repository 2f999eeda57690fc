"""Python API: the commands, with recipes as tables and Python objects in place of import paths.

Errors that the user can fix are a ``ValueError`` or a ``RunError`` with the command's message.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.cli.python.arguments import (
    check_arguments,
    check_callbacks,
    check_count,
    check_path,
    is_path,
    to_names,
    to_objects,
)
from marft.cli.python.run import Run
from marft.common.callbacks import Callback
from marft.common.errors import RunError, UserError
from marft.config.load import load_recipe as read_recipe
from marft.config.load import parse_recipe, to_toml
from marft.config.paths import RECIPE_FOLDER, expand_user
from marft.config.python_objects import ObjectPlaceholder
from marft.config.run import RunSettings, check_packages, check_trainable
from marft.config.team_changes import TeamChange, apply_team_change, describe_team_change, read_team_change
from marft.runs.run_folder import RunFolder, resolve_start

if TYPE_CHECKING:
    from marft.evaluation.evaluate import Evaluation, Mode
    from marft.evaluation.metric_changes import Comparison

RecipeLike = str | Path | Mapping[str, Any] | RunSettings
RecipeChanges = Mapping[str, Any] | Sequence[str]


def load_recipe(
    recipe: RecipeLike, changes: RecipeChanges = (), /, *, given: Iterable[Any] = (), **more: Any
) -> RunSettings:
    """Return a complete, validated recipe.

    Args:
        recipe: recipe file, name of a bundled recipe, or its tables.
        changes: ``{"training.steps": 5}``, or command-line arguments, ``["--training.steps", "5"]``.
        given: functions, classes and objects that a recorded recipe refers to by placeholder.
        more: changes by key: ``training={"steps": 5}``, ``algorithm="grpo"``.

    Functions and classes are allowed wherever a recipe file has import paths.

    Raises:
        UserError: a key or value is wrong; the message names it and the remedy.
    """
    arguments, tables = _split_changes(changes, more)
    given = to_objects(given)
    if isinstance(recipe, RunSettings):
        objects = {**recipe.python_objects, **_by_placeholder(given)}.values()
        return parse_recipe(tomllib.loads(to_toml(recipe)), arguments, recipe.name, tables, objects)
    if isinstance(recipe, Mapping):
        return parse_recipe(
            {"name": "run", RECIPE_FOLDER: str(Path.cwd()), **recipe}, arguments, "recipe", tables, given
        )
    if not is_path(recipe):
        raise UserError(
            "a recipe is a file, the name of a bundled one, tables, or what marft.load_recipe gives; this is of type "
            f"{type(recipe).__name__}"
        )
    return read_recipe(recipe, arguments, tables, given)


def load_run(path: str | Path, *, given: Iterable[Any] = ()) -> Run:
    """Return a recorded run. Reading it needs neither data, rewards nor models.

    Args:
        path: folder of the run, ``runs/name``.
        given: Python objects that its recipe refers to by placeholder, for evaluation.

    Raises:
        UserError: the folder is not a run.
    """
    check_path(path, "a run")
    return Run(RunFolder.open(path), tuple(to_objects(given)))


def train(
    recipe: RecipeLike | Run,
    changes: RecipeChanges = (),
    /,
    *,
    resume: bool = False,
    resume_or_start: bool = False,
    start_from: str | Path | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    program: Callable[..., Any] | None = None,
    given: Iterable[Any] = (),
    **more: Any,
) -> Run:
    """Train a team until its last step or until a callback stops training, and return the run.

    Args:
        recipe: as in :func:`load_recipe`; or the folder of a run, to resume it.
        changes: as in :func:`load_recipe`.
        resume: resume from the newest checkpoint, exactly as if the run had never stopped.
        resume_or_start: resume the run if it exists, else start it.
        start_from: checkpoint folder whose weights a new run starts with.
        overwrite: replace an existing run of the same name.
        callbacks: callbacks that observe the run, called in order. Without one, notes become warnings.
        program: function ``solve(task, clients)`` that acts as the team and prompts the agents over HTTP (docs:
            gateway).
        given: as in :func:`load_recipe`.
        more: as in :func:`load_recipe`.

    Raises:
        UserError: the recipe or the folder is invalid. The folder is then unchanged.
        RunError: no episode of a step could be scored, or writing failed.
    """
    settings, folder = resolve_run(recipe, changes, given, _merge_program(program, more))
    if resume_or_start:
        if resume or overwrite:
            raise UserError("resume_or_start goes on where there is a run; leave out resume and overwrite")
        if start_from is not None:
            check_path(start_from, "start_from: a checkpoint")
        folder = folder or RunFolder(Path(settings.output) / settings.name)
        checkpoint = None if start_from is None else expand_user(start_from)
        resume, start_from, overwrite = resolve_start(folder, checkpoint)

    def run_trainer(*arguments: Any, **options: Any) -> None:
        from marft.trainer.train import train as run_training

        run_training(*arguments, **options)

    return train_run(
        settings, folder, run_trainer, resume=resume, start_from=start_from, overwrite=overwrite, callbacks=callbacks
    )


def train_run(
    run: RunSettings,
    folder: RunFolder | None,
    run_trainer: Callable[..., None],
    *,
    resume: bool,
    start_from: str | Path | None,
    overwrite: bool,
    callbacks: Sequence[Callback],
) -> Run:
    """Train a run, by rewards or by imitation, and return it with its report.

    Args:
        folder: folder of an existing run; None: the recipe's folder.
        run_trainer: function that trains the run.
    """
    check_callbacks(callbacks)
    if start_from is not None:
        check_path(start_from, "start_from: a checkpoint")
    check_trainable(run)
    check_packages(run)
    folder = folder or RunFolder(Path(run.output) / run.name)
    folder.check_usable(resume, overwrite)
    with explain_file_errors():
        from marft.evaluation.report import write_report

        source = None if start_from is None else expand_user(start_from)
        run_trainer(
            run,
            folder,
            resume=resume,
            start_from=source,
            overwrite=overwrite,
            callbacks=list(callbacks) or [WarningCallback()],
        )
        write_report(folder)
    return Run(folder, tuple(run.python_objects.values()))


def evaluate(
    recipe: RecipeLike | Run,
    changes: RecipeChanges = (),
    /,
    *,
    checkpoints: str | Sequence[str] = ("base", "last"),
    modes: Mode | Sequence[Mode] = (),
    tasks: int = 0,
    shuffle_messages: bool = False,
    attempts: int = 0,
    scenarios: str | Path | None = None,
    rerun: bool = False,
    reorganized: str | Path | Mapping[str, Any] | None = None,
    program: Callable[..., Any] | None = None,
    given: Iterable[Any] = (),
    **more: Any,
) -> list[Evaluation]:
    """Evaluate a run's checkpoints and its untuned base on held-out tasks. A recipe has only its base.

    Results for a run are saved in its folder. The same evaluation is not played twice, and an interrupted one resumes.

    Args:
        recipe: a run or its folder, or a recipe as in :func:`load_recipe`.
        changes: as in :func:`load_recipe`.
        checkpoints: ``base``, ``last``, ``best``, ``step_000050``; one or several.
        modes: ``greedy``, ``sampled``, or both; default: the recipe's.
        tasks: number of tasks; 0: the recipe's.
        shuffle_messages: also evaluate with messages taken from other tasks.
        attempts: attempts at each task; 0: the recipe's. Several attempts give pass@k.
        scenarios: file with frozen scenarios, in place of modes, tasks and attempts.
        rerun: ignore saved results and play again.
        reorganized: another team for the trained agents: a file, or its tables with a ``name`` (docs: reorganization).
        program: function that acts as the team, as in :func:`train`.
        given: as in :func:`load_recipe`.
        more: as in :func:`load_recipe`.

    Raises:
        UserError: a checkpoint is missing or damaged, a mode is unknown, the recipe is invalid, or its tasks differ
            from the scenarios.
        RunError: writing failed.
    """
    names, wanted = to_names(checkpoints, "checkpoints", "last"), to_names(modes, "modes", "greedy")
    check_count(tasks, "tasks")
    check_count(attempts, "attempts")
    if scenarios is not None:
        check_path(scenarios, "scenarios: a file")
        if modes or tasks or attempts:
            raise UserError("scenarios say what is played; leave out modes, tasks and attempts")
    settings, folder = resolve_run(recipe, changes, given, _merge_program(program, more))
    settings, changed = apply_team(settings, folder, reorganized)
    with explain_file_errors():
        from marft.evaluation.evaluate import parse_modes
        from marft.evaluation.scenarios import read_scenario_set
        from marft.evaluation.session import EvaluationPlan, StorageOptions, evaluate_checkpoints

        return evaluate_checkpoints(
            settings,
            folder,
            EvaluationPlan(
                names if folder else ["base"],
                parse_modes(wanted, "modes") or settings.evaluation.modes,
                tasks or settings.evaluation.tasks,
                shuffled_too=bool(shuffle_messages),
                attempts=attempts or settings.evaluation.attempts,
                scenarios=read_scenario_set(expand_user(scenarios)) if scenarios is not None else None,
                reorganized=changed,
            ),
            lambda _=None: None,
            storage=StorageOptions(folder.evaluations, bool(rerun)) if folder else None,
        )


def compare(
    before: Run | str | Path | Sequence[Evaluation],
    after: Run | str | Path | Sequence[Evaluation],
    /,
    *,
    fail_if: str | Sequence[str] = (),
    by: str = "",
    other_tools: bool = False,
    after_as: str = "",
) -> Comparison:
    """Compare two evaluated teams on their common tasks.

    Args:
        before: an evaluated run, its folder, or the results of :func:`evaluate`.
        after: the same. Both sides use their last evaluated checkpoint.
        fail_if: gates: ``"accuracy < -1%"``, ``"accuracy after < 80%"``, ``"accuracy[level=3] < -2%"``.
        by: task field; changes are also shown for each of its values.
        other_tools: allow different tool descriptions.
        after_as: name of the changed team of the second side; the first side is the trained team.

    Raises:
        UserError: the sides have no common evaluation, different tasks under the same names, or different tool
            definitions; or a gate or field is invalid.
    """
    from marft.evaluation.comparison import compare_evaluations

    gates = [fail_if] if isinstance(fail_if, str) else list(fail_if)
    sides = [_read_side(before, "before"), _read_side(after, "after")]
    names = (sides[0][0], sides[1][0])
    return compare_evaluations(sides[0][1], sides[1][1], names, gates, by, other_tools=other_tools, after_as=after_as)


def _read_side(side: Run | str | Path | Sequence[Evaluation], name: str) -> tuple[str, list[Mapping[str, Any]]]:
    """Return the name and the evaluations for one side."""
    if isinstance(side, Run | str | Path):
        place = side.path if isinstance(side, Run) else side
        check_path(place, name)
        return str(place), [*RunFolder.open(place).read_evaluations(scenarios=True)]
    return name, [evaluation.as_json() for evaluation in side]


def _merge_program(program: Callable[..., Any] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return changes by key, with a program in place of the organization.

    Raises:
        UserError: the program is not callable, or another organization is given as well.
    """
    if program is None:
        return dict(more)
    if not callable(program):
        raise UserError(f"program is a function, solve(task, clients), and this is of type {type(program).__name__}")
    if "team" in more:
        raise UserError("program and team both say how the team is organized; give one of them")
    return {**more, "team": {"organization": "program", "call": program}}


class WarningCallback(Callback):
    """Callback that turns notes into warnings."""

    def on_note(self, text: str) -> None:
        """Issue a warning."""
        warnings.warn(text, stacklevel=2)


def resolve_run(
    recipe: RecipeLike | Run, changes: RecipeChanges, given: Iterable[Any], more: Mapping[str, Any]
) -> tuple[RunSettings, RunFolder | None]:
    """Return settings from a recipe, a run or its folder, with the folder of a run."""
    given = to_objects(given)
    if isinstance(recipe, Run):
        given = [*{**_by_placeholder(recipe.given), **_by_placeholder(given)}.values()]
        recipe = recipe.path
    if isinstance(recipe, str | Path) and expand_user(recipe).is_dir():
        folder = RunFolder.open(recipe)
        words, tables = _split_changes(changes, more)
        return folder.relocated_settings(words, tables, given), folder
    return load_recipe(recipe, changes, given=given, **more), None


def _split_changes(changes: RecipeChanges, more: Mapping[str, Any]) -> tuple[Sequence[str], dict[str, Any]]:
    """Split changes into command-line arguments and tables."""
    if isinstance(changes, Mapping):
        return (), {**changes, **more}
    check_arguments(changes)
    return list(changes), dict(more)


def _by_placeholder(given: Iterable[Any]) -> dict[str, Any]:
    return {str(ObjectPlaceholder(value)): value for value in given}


@contextmanager
def explain_file_errors() -> Iterator[None]:
    """Convert file system errors to :class:`RunError` with a remedy."""
    from marft.cli.errors import explain_file_error
    from marft.cli.handlers import silence_transformers

    silence_transformers()
    try:
        yield
    except Exception as error:  # its chain of causes may hold a file error
        message = explain_file_error(error)
        if not message:
            raise
        raise RunError(message) from error


def apply_team(
    run: RunSettings, folder: RunFolder | None, change: str | Path | Mapping[str, Any] | None
) -> tuple[RunSettings, dict[str, Any]]:
    """Return the run in the requested team, and its differences to the trained team.

    Args:
        run: settings with the changes applied.
        folder: folder of a trained run; None for a recipe.
        change: file of a team change, or its tables with a ``name``; None: no change.

    Raises:
        UserError: the team change is missing or invalid, or has no effect.
    """
    trained = folder.relocated_settings(objects=run.python_objects.values()) if folder else run
    plan = None
    if isinstance(change, Mapping):
        if not isinstance(change.get("name"), str):
            raise UserError("reorganized: tables have a name, which evaluations bear: {'name': 'tree', 'team': …}")
        plan = TeamChange(change["name"], {key: value for key, value in change.items() if key != "name"})
    elif change is not None:
        if not is_path(change):
            raise UserError(f"reorganized is a file or its tables, and this is of type {type(change).__name__}")
        plan = read_team_change(change)
    evaluated = apply_team_change(run, plan) if plan else run
    return evaluated, describe_team_change(trained, evaluated, plan)
