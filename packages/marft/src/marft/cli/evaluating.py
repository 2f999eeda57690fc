"""``marft eval`` for runs, checkpoints, exports and recipes, and ``marft scenarios``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from marft.cli.commands import bar, console, quieten
from marft.cli.console import evaluation_table, passes_table
from marft.cli.errors import beside
from marft.cli.output import How, Output, output
from marft.config.load import keys_of, load_recipe, overrides_of_others, to_toml
from marft.config.plugins import load_registered
from marft.config.reorganizing import TABLES, changes_of_team, read_reorganization, reorganized
from marft.config.run import RunSettings
from marft.runs.folder import RunFolder

if TYPE_CHECKING:
    from marft.evaluation.evaluate import Evaluation
    from marft.evaluation.scenarios import Scenarios

EVALUATED = "evaluated"  # folder, among the runs, for evaluations of targets that are not runs
TOLD = (  # fields of an evaluation in JSON output
    "target", "checkpoint", "mode", "split", "shuffled_messages", "tasks", "attempts", "failed", "unknown", "accuracy",
    "interval", "passes", "reward", "reward_interval", "metrics", "reorganized",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """Options for an evaluation, applied to every target; empty or 0 means the recipe's value."""

    checkpoints: Sequence[str] = ("base", "last")
    mode: str = ""
    tasks: int = 0
    attempts: int = 0
    shuffled: bool = False
    again: bool = False
    scenarios: Path | None = None
    trust_code: bool = False
    by: str = ""  # task field for additional metrics by cohort
    suite: Path | None = None
    fail_if: Sequence[str] = ()  # gates in addition to the suite's
    organized: Path | None = None  # file with another team for the trained agents

    def check(self) -> None:
        """Check for conflicting options.

        Raises:
            ValueError: two options exclude each other.
        """
        beside_it = {"--mode": self.mode, "--tasks": self.tasks, "--attempts": self.attempts}
        said = next((option for option, value in beside_it.items() if value), "")
        if self.scenarios and said:
            raise ValueError(f"{said}: {self.scenarios} says what is played; leave out either")
        if self.fail_if and not self.suite:
            raise ValueError("--fail-if goes with --suite; two runs are held against each other by marft compare")
        of_tasks = {
            "--as": self.organized,
            "--scenarios": self.scenarios,
            "--shuffle-messages": self.shuffled,
            "--by": self.by,
        }
        other = next((option for option, value in of_tasks.items() if value), "")
        if self.suite and other:
            raise ValueError(f"{other} is of held-out tasks, and does not go with --suite; ask for one after the other")


@dataclass(frozen=True, slots=True)
class Target:
    """Evaluation target: a run, or a recipe with its untuned base only.

    Args:
        run: settings.
        folder: folder of a run; None for an export or a recipe.
        checkpoints: names of the checkpoints to evaluate.
        kept: folder for the evaluations.
        called: name of the base in results; "" for an untuned base.
        reorganized: differences to the team that was trained.
        check: called with the digests of the models before the first episode.
    """

    run: RunSettings
    folder: RunFolder | None
    checkpoints: Sequence[str]
    kept: RunFolder
    called: str = ""
    reorganized: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Mapping[str, str]], None] = lambda _: None


def evaluate(paths: Sequence[Path], overrides: Sequence[str], asked: Asked, how: How = "") -> None:
    """``marft eval``: evaluate every target and print one table.

    Raises:
        ValueError: options conflict, or a target or field is invalid.
    """
    asked.check()
    targets = [target_of(path, overrides, asked) for path in paths]
    quieten()
    from marft.evaluation.scenarios import read_scenarios

    scenarios = read_scenarios(asked.scenarios) if asked.scenarios else None
    if asked.by:
        _check_field(targets, asked, scenarios)
    rows: list[dict[str, Any]] = []
    with output(how) as out:
        for path, target in zip(paths, targets, strict=True):
            if len(targets) > 1:
                beside(target.kept.path)
            for result in _evaluated(target, asked, scenarios, out):
                rows.append({**result.as_json(), "target": str(path)})
                told = {**rows[-1], "metrics": result.metrics}
                out.tell("evaluation", **{key: told[key] for key in TOLD})
        _show(out, rows, several=len(targets) > 1, by=asked.by)
        for target in targets:
            # such evaluations are in no report
            shown = target.folder and not (asked.scenarios or asked.suite or asked.organized)
            out.say(f"saved in {target.kept.evaluations}" + (f"; see {target.kept.report}" if shown else ""))
        out.tell("done", evaluations=len(rows), runs=[target.kept.path for target in targets])


def evaluate_suite(paths: Sequence[Path], overrides: Sequence[str], asked: Asked, how: How = "") -> bool:
    """Evaluate targets on a suite of attacks and rules, with the implementation from an installed package.

    Returns:
        True if no gate of the suite failed.
    """
    passed: bool = load_registered("suites", "safety")(paths, overrides, asked, how)
    return passed


def _check_field(targets: Sequence[Target], asked: Asked, scenarios: Scenarios | None) -> None:
    """Check that the requested cohort field exists in a selected task.

    Raises:
        ValueError: no selected task has the field.
    """
    from marft.evaluation.cohorts import cohorts_of, fields_of, together
    from marft.evaluation.session import tasks_asked

    chosen = [tasks_asked(target.run, asked.tasks or target.run.evaluation.tasks, scenarios) for target in targets]
    cohorts_of(together(map(fields_of, chosen)), asked.by)


def _show(out: Output, rows: Sequence[Mapping[str, Any]], several: bool, by: str) -> None:
    """Print result tables.

    Raises:
        ValueError: no task has the field ``by``.
    """
    from marft.evaluation.trajectories.by_cohort import cohort_table
    from marft.evaluation.trajectories.table import trajectory_table

    out.say(evaluation_table(rows, targets=several), "")
    if any(row["passes"] for row in rows):
        out.say(passes_table(rows, targets=several), "")
    out.say(trajectory_table(rows, targets=several))
    if by:
        out.say("", cohort_table(rows, by))


def target_of(path: Path, overrides: Sequence[str], asked: Asked) -> Target:
    """Return the evaluation target for a run, one checkpoint, an export or a recipe.

    Raises:
        ValueError: the path is none of these.
    """
    if (path / "team.json").is_file():
        from marft.runs.export.loading import check_bases, settings_of
        from marft.runs.export.manifest import load_export

        export = load_export(path)
        # without the team's tables; other overrides supply settings that the export leaves out
        others = overrides_of_others(overrides, (*TABLES, "policies"))
        run, changed = _in_another(
            lambda: settings_of(export, others, asked.trust_code),
            settings_of(export, overrides, asked.trust_code), overrides, asked,
        )  # fmt: skip
        return Target(
            run, None, ["base"], _kept(run, path.resolve().name), export.manifest.checkpoint.name, changed,
            lambda digests: check_bases(export, digests),
        )  # fmt: skip
    checkpoints = asked.checkpoints
    if path.parent.name == "checkpoints" and (path / "state.json").is_file():
        path, checkpoints = path.parent.parent, [path.name]
    if path.is_dir():
        folder = RunFolder.open(path)
        beside(folder.path)
        run, changed = _in_another(folder.settings_in_place, folder.settings_in_place(overrides), overrides, asked)
        return Target(run, folder, checkpoints, folder, reorganized=changed)
    whole = load_recipe(path, overrides)
    run, changed = _in_another(lambda: whole, whole, [], asked)
    return Target(run, None, ["base"], _kept(run, run.name), reorganized=changed)


def _in_another(
    trained: Callable[[], RunSettings], run: RunSettings, overrides: Sequence[str], asked: Asked
) -> tuple[RunSettings, dict[str, Any]]:
    """Return the run in the requested team, and its differences to the trained team.

    Args:
        trained: returns the settings of the trained team.
        run: settings with the overrides applied.

    Raises:
        ValueError: the team file is missing or invalid, or changes nothing.
    """
    into = read_reorganization(asked.organized) if asked.organized else None
    played = reorganized(run, into) if into else run
    touched = into is not None or any(key.partition(".")[0] in TABLES for key in keys_of(overrides))
    return played, changes_of_team(trained(), played, into) if touched else {}


def scenarios(
    recipe: Path, overrides: Sequence[str], output: Path, tasks: int, split: str, by: str, mode: str, attempts: int
) -> None:
    """``marft scenarios``.

    Raises:
        ValueError: the split, a mode or the name of the output file is invalid.
    """
    from marft.evaluation.evaluate import modes_in
    from marft.evaluation.scenarios import freeze

    if split not in ("train", "validation", "test"):
        raise ValueError(f"--split: {split!r} is none of train, validation, test")
    run = target_of(recipe, overrides, Asked()).run
    modes = modes_in(mode.split(","), "--mode") if mode else run.evaluation.modes
    found = freeze(
        run, output.stem, cast("Any", split), tasks or run.evaluation.tasks, by, modes,
        attempts or run.evaluation.attempts,
    )  # fmt: skip
    if output.suffix != ".json":
        raise ValueError(f"--output: scenarios are kept as JSON; call the file {output.with_suffix('.json')}")
    found.write(output)
    console.print(
        f"wrote {output}: {len(found.digests)} tasks of the {split} split, {', '.join(found.modes)}, attempts at each: "
        f"{found.attempts}. Keep it with your code, and:  marft eval {recipe} --scenarios {output}",
        soft_wrap=True,
    )


def _evaluated(target: Target, asked: Asked, scenarios: Scenarios | None, out: Output) -> list[Evaluation]:
    from marft.evaluation.evaluate import modes_in
    from marft.evaluation.session import Keeping, evaluate_checkpoints

    run = target.run
    modes = modes_in(asked.mode.split(","), "--mode") if asked.mode else run.evaluation.modes
    with bar("evaluating", shown=not out.how) as advance:
        results = evaluate_checkpoints(
            run, target.folder, target.checkpoints, modes, asked.tasks or run.evaluation.tasks, asked.shuffled, advance,
            out.note, target.check,
            attempts=asked.attempts or run.evaluation.attempts, scenarios=scenarios,
            keeping=Keeping(target.kept.evaluations, asked.again), reorganized=target.reorganized,
        )  # fmt: skip
    keep_recipe(target, out.note)
    return [replace(result, checkpoint=target.called) if target.called else result for result in results]


def keep_recipe(target: Target, note: Callable[[str], None]) -> None:
    """Update a run's report, or save the recipe for comparisons with another target."""
    from marft.evaluation.keeping import NO_WRITING
    from marft.evaluation.report import write_report

    try:
        if target.folder is not None:
            write_report(target.folder)
        elif not target.kept.config.is_file() or target.kept.config.read_text(encoding="utf-8") != to_toml(target.run):
            target.kept.write_config(target.run)
    except OSError as error:
        if error.errno not in NO_WRITING:
            raise
        note(f"nothing can be written in {target.kept.path} ({error.strerror}): it stays as it was")


def _kept(run: RunSettings, name: str) -> RunFolder:
    return RunFolder(Path(run.output) / EVALUATED / name)
