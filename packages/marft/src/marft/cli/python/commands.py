"""MARFT from Python: what the commands do, with recipes as tables and functions in the place of import paths.

What a user can put right is a ``ValueError`` or a ``RunError`` in the words of the command.
"""

from __future__ import annotations

import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.cli.python.asked import (
    check_count,
    check_observer,
    check_place,
    check_words,
    is_path,
    names_in,
    things_in,
)
from marft.cli.python.reorganizing import in_another_team
from marft.cli.python.run import Run
from marft.common.errors import RunError
from marft.common.observing import Observer
from marft.config.folders import FOLDER, at_home
from marft.config.given import Given
from marft.config.load import load_recipe as read_recipe
from marft.config.load import parse_recipe, to_toml
from marft.config.run import RunSettings, refuse_missing_packages, refuse_nothing_to_train
from marft.runs.folder import RunFolder
from marft.runs.going_on import resumed_or_started

if TYPE_CHECKING:
    from marft.evaluation.comparison import Comparison
    from marft.evaluation.evaluate import Evaluation, Mode

Recipe = str | Path | Mapping[str, Any] | RunSettings
Changes = Mapping[str, Any] | Sequence[str]


def load_recipe(recipe: Recipe, changes: Changes = (), /, *, given: Iterable[Any] = (), **more: Any) -> RunSettings:
    """A recipe, complete and checked.

    Args:
        recipe: a file, the name of a bundled recipe, or the tables of one.
        changes: ``{"training.steps": 5}``; or the words of the command line, ``["--training.steps", "5"]``.
        given: functions, classes and objects that a recorded recipe names as given in Python.
        more: changes by key: ``training={"steps": 5}``, ``algorithm="grpo"``.

    Functions and classes may stand wherever a recipe in a file has import paths.

    Raises:
        ValueError: a key or a value is wrong; the message says which and what to do.
    """
    words, tables = _apart(changes, more)
    given = things_in(given)
    if isinstance(recipe, RunSettings):
        whole = {**recipe.given, **_by_words(given)}.values()
        return parse_recipe(tomllib.loads(to_toml(recipe)), words, recipe.name, tables, whole)
    if isinstance(recipe, Mapping):
        return parse_recipe({"name": "run", FOLDER: str(Path.cwd()), **recipe}, words, "recipe", tables, given)
    if not is_path(recipe):
        raise ValueError(
            "a recipe is a file, the name of a bundled one, tables, or what marft.load_recipe gives; this is of type "
            f"{type(recipe).__name__}"
        )
    return read_recipe(recipe, words, tables, given)


def load_run(path: str | Path, *, given: Iterable[Any] = ()) -> Run:
    """A run that was recorded. To look at it takes neither its data, nor its rewards, nor its models.

    Args:
        path: its folder, ``runs/name``.
        given: what its recipe names as given in Python, to evaluate it.

    Raises:
        ValueError: there is none.
    """
    check_place(path, "a run")
    return Run(RunFolder.open(path), tuple(things_in(given)))


def train(
    recipe: Recipe | Run, changes: Changes = (), /, *, resume: bool = False, resume_or_start: bool = False,
    start_from: str | Path | None = None, overwrite: bool = False, observer: Observer | None = None,
    program: Callable[..., Any] | None = None, given: Iterable[Any] = (), **more: Any,
) -> Run:  # fmt: skip
    """Train a team to its last step, or until the observer wants to stop → the run.

    Args:
        recipe: as in :func:`load_recipe`; or the folder of a run, to go on with it.
        resume: go on from the newest checkpoint, exactly as if the run had never stopped.
        resume_or_start: the same where there is such a run, else start it.
        start_from: a checkpoint folder whose weights a new run begins with.
        overwrite: take the place of a run of that name.
        observer: whoever watches. Without one, what a run has to say of itself is a warning.
        program: the team is this function, ``solve(task, clients)``, which asks the agents over HTTP (docs: gateway).

    Raises:
        ValueError: something in the recipe, or in the folder, cannot be used. Then the folder is as it was before.
        RunError: nothing of a step could be scored, or nothing can be written.
    """
    settings, folder = run_of(recipe, changes, given, _with(program, more))
    if resume_or_start:
        if resume or overwrite:
            raise ValueError("resume_or_start goes on where there is a run; leave out resume and overwrite")
        if start_from is not None:
            check_place(start_from, "start_from: a checkpoint")
        folder = folder or RunFolder(Path(settings.output) / settings.name)
        begins_with = None if start_from is None else at_home(start_from)
        resume, start_from, overwrite = resumed_or_started(folder, begins_with)

    def learn(*arguments: Any, **options: Any) -> None:
        from marft.trainer.loop import train as run_training

        run_training(*arguments, **options)

    return learned(
        settings, folder, learn, resume=resume, start_from=start_from, overwrite=overwrite, observer=observer
    )


def learned(
    run: RunSettings, folder: RunFolder | None, learn: Callable[..., None], *, resume: bool,
    start_from: str | Path | None, overwrite: bool, observer: Observer | None,
) -> Run:  # fmt: skip
    """What a run has learned, by rewards or by imitation → the run, with its report.

    Args:
        folder: of a run that is there already; None: as the recipe says.
        learn: does it.
    """
    check_observer(observer)
    if start_from is not None:
        check_place(start_from, "start_from: a checkpoint")
    refuse_nothing_to_train(run)
    refuse_missing_packages(run)
    folder = folder or RunFolder(Path(run.output) / run.name)
    if resume:
        RunFolder.open(folder.path)
    else:
        folder.check_free(overwrite)
    with in_words():
        from marft.evaluation.report import write_report

        source = None if start_from is None else at_home(start_from)
        learn(run, folder, resume=resume, start_from=source, overwrite=overwrite, observer=observer or Warned())
        write_report(folder)
    return Run(folder, tuple(run.given.values()))


def evaluate(
    recipe: Recipe | Run, changes: Changes = (), /, *, checkpoints: str | Sequence[str] = ("base", "last"),
    modes: Mode | Sequence[Mode] = (), tasks: int = 0, shuffle_messages: bool = False, attempts: int = 0,
    scenarios: str | Path | None = None, again: bool = False,
    reorganized: str | Path | Mapping[str, Any] | None = None,
    program: Callable[..., Any] | None = None, given: Iterable[Any] = (), **more: Any,
) -> list[Evaluation]:  # fmt: skip
    """Evaluate checkpoints of a run, and its untuned base, on held-out tasks. Of a recipe it is the base alone.

    What is played of a run is kept in its folder: the same is not played twice, and what was stopped goes on.

    Args:
        recipe: a run, or its folder; or a recipe as in :func:`load_recipe`.
        checkpoints: ``base``, ``last``, ``best``, ``step_000050``; one, or several.
        modes: ``greedy``, ``sampled``, or both; as the recipe says where none is given.
        tasks: how many; 0: as the recipe says.
        shuffle_messages: also with every agent seeing messages of another task.
        attempts: at each task, 0: as the recipe says; with several, pass@k.
        scenarios: exactly those of this file, in the place of modes, tasks and attempts.
        again: play anew what is kept from before.
        reorganized: the trained agents in another team, a file or its tables (docs: reorganization), with a ``name``.
        program: the team is this function, as in :func:`train`.

    Raises:
        ValueError: a checkpoint is not there or damaged, there is no such mode, the recipe cannot be used, or its tasks
            are not those of the scenarios.
        RunError: nothing can be written.
    """
    names, wanted = names_in(checkpoints, "checkpoints", "last"), names_in(modes, "modes", "greedy")
    check_count(tasks, "tasks")
    check_count(attempts, "attempts")
    if scenarios is not None:
        check_place(scenarios, "scenarios: a file")
        if modes or tasks or attempts:
            raise ValueError("scenarios say what is played; leave out modes, tasks and attempts")
    settings, folder = run_of(recipe, changes, given, _with(program, more))
    settings, changed = in_another_team(settings, folder, reorganized)
    with in_words():
        from marft.evaluation.evaluate import modes_in
        from marft.evaluation.scenarios import read_scenarios
        from marft.evaluation.session import Keeping, evaluate_checkpoints

        return evaluate_checkpoints(
            settings, folder, names if folder else ["base"], modes_in(wanted, "modes") or settings.evaluation.modes,
            tasks or settings.evaluation.tasks, bool(shuffle_messages), lambda _=None: None,
            attempts=attempts or settings.evaluation.attempts,
            keeping=Keeping(folder.evaluations, bool(again)) if folder else None,
            scenarios=read_scenarios(at_home(scenarios)) if scenarios is not None else None, reorganized=changed,
        )  # fmt: skip


def compare(
    before: Run | str | Path | Sequence[Evaluation], after: Run | str | Path | Sequence[Evaluation], /, *,
    fail_if: str | Sequence[str] = (), by: str = "", other_tools: bool = False, after_as: str = "",
) -> Comparison:  # fmt: skip
    """Hold one evaluated team against another, on the tasks that both were evaluated on.

    Args:
        before: a run that was evaluated, its folder, or what :func:`evaluate` gave.
        after: the same; of each, the last checkpoint that was evaluated.
        fail_if: gates: ``"accuracy < -1%"``, ``"accuracy after < 80%"``, ``"accuracy[level=3] < -2%"``.
        by: a field of the tasks, by whose values changes are shown too.
        other_tools: agents may have been told other things of their tools.
        after_as: what the team after was reorganized as; the one before is as it was trained.

    Raises:
        ValueError: they were evaluated on nothing that both have, on other tasks of the same names, or with other
            definitions of tools; or a gate or a field is none.
    """
    from marft.evaluation.comparison import compared

    gates = [fail_if] if isinstance(fail_if, str) else list(fail_if)
    sides = [_saved(before, "before"), _saved(after, "after")]
    names = (sides[0][0], sides[1][0])
    return compared(sides[0][1], sides[1][1], names, gates, by, other_tools=other_tools, after_as=after_as)


def _saved(side: Run | str | Path | Sequence[Evaluation], name: str) -> tuple[str, list[Mapping[str, Any]]]:
    """What a side is called, and its evaluations."""
    from marft.evaluation.comparison import saved_in

    if isinstance(side, Run | str | Path):
        place = side.path if isinstance(side, Run) else side
        check_place(place, name)
        return str(place), [*saved_in(RunFolder.open(place))]
    return name, [evaluation.as_json() for evaluation in side]


def _with(program: Callable[..., Any] | None, more: Mapping[str, Any]) -> dict[str, Any]:
    """Changes by key, of which one puts a program in the place of the organization.

    Raises:
        ValueError: it cannot be called, or another organization is given as well.
    """
    if program is None:
        return dict(more)
    if not callable(program):
        raise ValueError(f"program is a function, solve(task, clients), and this is of type {type(program).__name__}")
    if "team" in more:
        raise ValueError("program and team both say how the team is organized; give one of them")
    return {**more, "team": {"organization": "program", "call": program}}


class Warned(Observer):
    """Nobody watches, but what whoever trains should know is no secret."""

    def note(self, text: str) -> None:
        warnings.warn(text, stacklevel=2)


def run_of(
    recipe: Recipe | Run, changes: Changes, given: Iterable[Any], more: Mapping[str, Any]
) -> tuple[RunSettings, RunFolder | None]:
    """Settings from a recipe, or from a run or its folder, which then comes too."""
    given = things_in(given)
    if isinstance(recipe, Run):
        given = [*{**_by_words(recipe.given), **_by_words(given)}.values()]
        recipe = recipe.path
    if isinstance(recipe, str | Path) and at_home(recipe).is_dir():
        folder = RunFolder.open(recipe)
        words, tables = _apart(changes, more)
        return folder.settings_in_place(words, tables, given), folder
    return load_recipe(recipe, changes, given=given, **more), None


def _apart(changes: Changes, more: Mapping[str, Any]) -> tuple[Sequence[str], dict[str, Any]]:
    """Words of the command line, and tables."""
    if isinstance(changes, Mapping):
        return (), {**changes, **more}
    check_words(changes)
    return list(changes), dict(more)


def _by_words(given: Iterable[Any]) -> dict[str, Any]:
    return {str(Given(value)): value for value in given}


@contextmanager
def in_words() -> Iterator[None]:
    """What the system says about files, with what to do about it."""
    from marft.cli.commands import quieten
    from marft.cli.errors import about_files

    quieten()
    try:
        yield
    except Exception as error:
        said = about_files(error)
        if not said:
            raise
        raise RunError(said) from error
