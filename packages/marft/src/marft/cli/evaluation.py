"""``marft eval`` for runs, checkpoints, exports and recipes, and ``marft scenarios``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from marft.cli.console import bold, evaluation_table
from marft.cli.errors import open_run_for_command, set_run_folder
from marft.cli.handlers import console, progress_bar, silence_transformers
from marft.cli.output import Output, OutputMode, open_output
from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.config.load import load_recipe, other_overrides, override_keys, to_toml
from marft.config.plugins import load_registered
from marft.config.run import RunSettings
from marft.config.team_changes import TEAM_TABLES, apply_team_change, describe_team_change, read_team_change
from marft.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from marft.config.interfaces.environment import Split
    from marft.evaluation.answers import Answer, TargetKind
    from marft.evaluation.evaluate import Evaluation
    from marft.evaluation.scenarios import ScenarioSet

logger = get_logger(__name__)
EVALUATED_FOLDER = "evaluated"  # folder, among the runs, for evaluations of targets that are not runs
JSON_FIELDS = (  # fields of an evaluation in JSON output
    "target",
    "checkpoint",
    "mode",
    "split",
    "shuffled_messages",
    "tasks",
    "attempts",
    "failed",
    "unknown",
    "accuracy",
    "interval",
    "passes",
    "reward",
    "reward_interval",
    "metrics",
    "reorganized",
)


@dataclass(frozen=True, slots=True)
class EvaluationOptions:
    """Options for an evaluation, applied to every target; empty or 0 means the recipe's value."""

    checkpoints: Sequence[str] = ("base", "last")
    mode: str = ""
    tasks: int = 0
    attempts: int = 0
    shuffle_messages: bool = False
    rerun: bool = False
    scenarios: Path | None = None
    trust_code: bool = False
    by: str = ""  # task field for additional metrics by cohort
    suite: Path | None = None
    fail_if: Sequence[str] = ()  # gates in addition to the suite's
    team_file: Path | None = None  # file with another team for the trained agents

    def check(self) -> None:
        """Check for conflicting options.

        Raises:
            UserError: two options exclude each other.
        """
        exclusive = {"--mode": self.mode, "--tasks": self.tasks, "--attempts": self.attempts}
        conflict = next((option for option, value in exclusive.items() if value), "")
        if self.scenarios and conflict:
            raise UserError(f"{conflict}: {self.scenarios} says what is played; leave out either")
        if self.fail_if and not self.suite:
            raise UserError("--fail-if goes with --suite; two runs are held against each other by marft compare")
        of_tasks = {
            "--team-file": self.team_file,
            "--scenarios": self.scenarios,
            "--shuffle-messages": self.shuffle_messages,
            "--group-by": self.by,
        }
        task_option = next((option for option, value in of_tasks.items() if value), "")
        if self.suite and task_option:
            raise UserError(
                f"{task_option} is of held-out tasks, and does not go with --suite; ask for one after the other"
            )


@dataclass(frozen=True, slots=True)
class EvaluationTarget:
    """Evaluation target: a run, or a recipe with its untuned base only.

    Args:
        run: settings.
        folder: folder of a run; None for an export or a recipe.
        checkpoints: names of the checkpoints to evaluate.
        output_folder: folder for the evaluations.
        base_name: name of the base in results; "" for an untuned base.
        reorganized: differences to the team that was trained.
        check: called with the digests of the models before the first episode.
    """

    run: RunSettings
    folder: RunFolder | None
    checkpoints: Sequence[str]
    output_folder: RunFolder
    base_name: str = ""
    reorganized: Mapping[str, Any] = field(default_factory=dict)
    check: Callable[[Mapping[str, str]], None] = lambda _: None


def evaluate(
    paths: Sequence[Path], overrides: Sequence[str], options: EvaluationOptions, output_mode: OutputMode = ""
) -> None:
    """``marft eval``: evaluate every target and print one table.

    Raises:
        UserError: options conflict, or a target or field is invalid.
    """
    options.check()
    targets = [resolve_target(path, overrides, options) for path in paths]
    silence_transformers()
    from marft.evaluation.answers import summarize_advice
    from marft.evaluation.scenarios import read_scenario_set

    scenarios = read_scenario_set(options.scenarios) if options.scenarios else None
    if options.by:
        _check_field(targets, options, scenarios)
    rows: list[dict[str, Any]] = []
    with open_output(output_mode) as out:
        for number, (path, target) in enumerate(zip(paths, targets, strict=True)):
            if len(targets) > 1:
                set_run_folder(target.output_folder.path)
            for result in _evaluate_target(target, options, scenarios, out):
                rows.append({**result.as_json(), "target": str(path), "number": number})
                fields = {**rows[-1], "metrics": result.metrics}
                out.emit("evaluation", **{key: fields[key] for key in JSON_FIELDS})
        answers = _answer_questions(paths, targets, rows, options)
        _print_results(out, rows, multiple=len(targets) > 1, by=options.by)
        for target in targets:
            # such evaluations are in no report
            in_report = target.folder and not (options.scenarios or options.suite or options.team_file)
            out.print(
                f"saved in {target.output_folder.evaluations}"
                + (f"; see {target.output_folder.report_path}" if in_report else "")
            )
        out.print("", *(bold(answer.text) for answer in answers))
        out.print(*filter(None, [summarize_advice(answers)]))
        out.emit(
            "done",
            evaluations=len(rows),
            runs=[target.output_folder.path for target in targets],
            answers=[asdict(answer) for answer in answers],
        )


def evaluate_suite(
    paths: Sequence[Path], overrides: Sequence[str], options: EvaluationOptions, output_mode: OutputMode = ""
) -> bool:
    """Evaluate targets on a suite of attacks and rules, with the implementation from an installed package.

    Returns:
        True if no gate of the suite failed.
    """
    passed: bool = load_registered("suites", "safety")(paths, overrides, options, output_mode)
    return passed


def _check_field(
    targets: Sequence[EvaluationTarget], options: EvaluationOptions, scenarios: ScenarioSet | None
) -> None:
    """Check that the requested cohort field exists in a selected task.

    Raises:
        UserError: no selected task has the field.
    """
    from marft.evaluation.cohorts import collect_fields, group_tasks_by_field, merge_fields
    from marft.evaluation.session import select_tasks

    chosen = [select_tasks(target.run, options.tasks or target.run.evaluation.tasks, scenarios) for target in targets]
    group_tasks_by_field(merge_fields(map(collect_fields, chosen)), options.by)


def _print_results(out: Output, rows: Sequence[Mapping[str, Any]], multiple: bool, by: str) -> None:
    """Print result tables.

    Raises:
        UserError: no task has the field ``by``.
    """
    from marft.evaluation.metric_tables import build_cohort_table, build_metric_table

    # before and after training side by side
    modes = list(dict.fromkeys(row["mode"] for row in rows))
    rows = sorted(rows, key=lambda row: (row["number"], modes.index(row["mode"])))
    out.print(evaluation_table(rows, targets=multiple), "")
    out.print(build_metric_table(rows, targets=multiple))
    if by:
        out.print("", build_cohort_table(rows, by, targets=multiple))
    out.print("")


def _answer_questions(
    paths: Sequence[Path],
    targets: Sequence[EvaluationTarget],
    rows: Sequence[Mapping[str, Any]],
    options: EvaluationOptions,
) -> list[Answer]:
    """Return for each target whether training helped, and whether messages matter if they were shuffled."""
    from marft.evaluation.answers import EvaluatedTarget, answer_questions
    from marft.evaluation.column_tables import short_names

    names = short_names([str(path) for path in paths]) if len(paths) > 1 else [""]
    answers: list[Answer] = []
    for number, (path, target, name) in enumerate(zip(paths, targets, names, strict=True)):
        evaluations = [row for row in rows if row["number"] == number]
        requested = options.tasks or target.run.evaluation.tasks
        # fewer tasks than requested: the environment has no more
        played = min((len(row.get("prompts", ())) or row["tasks"] for row in evaluations), default=0)
        has_more_tasks = options.scenarios is None and played >= requested
        evaluated = EvaluatedTarget(name, str(path), _target_kind(path, target), evaluations, has_more_tasks)
        answers += answer_questions(evaluated)
    return answers


def _target_kind(path: Path, target: EvaluationTarget) -> TargetKind:
    return "run" if target.folder else "export" if path.is_dir() else "recipe"


def resolve_target(path: Path, overrides: Sequence[str], options: EvaluationOptions) -> EvaluationTarget:
    """Return the evaluation target for a run, one checkpoint, an export or a recipe.

    Raises:
        UserError: the path is none of these.
    """
    if (path / "team.json").is_file():
        from marft.runs.export.manifest import load_export
        from marft.runs.export.recipe import check_bases, load_settings

        export = load_export(path)
        # without the team's tables; other overrides supply settings that the export leaves out
        other_options = other_overrides(overrides, (*TEAM_TABLES, "policies"))
        run, changed = _apply_team(
            lambda: load_settings(export, other_options, options.trust_code),
            load_settings(export, overrides, options.trust_code),
            overrides,
            options,
        )
        return EvaluationTarget(
            run,
            None,
            ["base"],
            _evaluation_folder(run, path.resolve().name),
            export.manifest.checkpoint.name,
            changed,
            lambda digests: check_bases(export, digests),
        )
    checkpoints = options.checkpoints
    if path.parent.name == "checkpoints" and (path / "state.json").is_file():
        path, checkpoints = path.parent.parent, [path.name]
    if path.is_dir():
        folder = open_run_for_command(path)
        run, changed = _apply_team(folder.relocated_settings, folder.relocated_settings(overrides), overrides, options)
        return EvaluationTarget(run, folder, checkpoints, folder, reorganized=changed)
    settings = load_recipe(path, overrides)
    run, changed = _apply_team(lambda: settings, settings, [], options)
    return EvaluationTarget(run, None, ["base"], _evaluation_folder(run, run.name), reorganized=changed)


def _apply_team(
    trained: Callable[[], RunSettings], run: RunSettings, overrides: Sequence[str], options: EvaluationOptions
) -> tuple[RunSettings, dict[str, Any]]:
    """Return the run in the requested team, and its differences to the trained team.

    Args:
        trained: returns the settings of the trained team.
        run: settings with the overrides applied.

    Raises:
        UserError: the team file is missing or invalid, or changes nothing.
    """
    change = read_team_change(options.team_file) if options.team_file else None
    evaluated = apply_team_change(run, change) if change else run
    is_changed = change is not None or any(key.partition(".")[0] in TEAM_TABLES for key in override_keys(overrides))
    return evaluated, describe_team_change(trained(), evaluated, change) if is_changed else {}


def write_scenarios(
    recipe: Path, overrides: Sequence[str], output: Path, split: str, options: EvaluationOptions
) -> None:
    """``marft scenarios``.

    Raises:
        UserError: the split, a mode or the name of the output file is invalid.
    """
    from marft.evaluation.evaluate import parse_modes
    from marft.evaluation.scenarios import freeze_scenarios

    if split not in ("train", "validation", "test"):
        raise UserError(f"--split: {split!r} is none of train, validation, test")
    run = resolve_target(recipe, overrides, options).run
    modes = parse_modes(options.mode.split(","), "--mode") if options.mode else run.evaluation.modes
    tasks, attempts = options.tasks or run.evaluation.tasks, options.attempts or run.evaluation.attempts
    frozen = freeze_scenarios(run, output.stem, cast("Split", split), tasks, options.by, modes, attempts)
    if output.suffix != ".json":
        raise UserError(f"--output: scenarios are kept as JSON; call the file {output.with_suffix('.json')}")
    frozen.write(output)
    console.print(
        f"wrote {output}: {len(frozen.digests)} tasks of the {split} split, {', '.join(frozen.modes)}, attempts at "
        f"each: {frozen.attempts}. Keep it with your code, and:  marft eval {recipe} --scenarios {output}",
        soft_wrap=True,
    )


def _evaluate_target(
    target: EvaluationTarget, options: EvaluationOptions, scenarios: ScenarioSet | None, out: Output
) -> list[Evaluation]:
    from marft.evaluation.evaluate import parse_modes
    from marft.evaluation.session import EvaluationPlan, StorageOptions, evaluate_checkpoints

    run = target.run
    modes = parse_modes(options.mode.split(","), "--mode") if options.mode else run.evaluation.modes
    with progress_bar("evaluating", enabled=not out.mode) as advance:
        results = evaluate_checkpoints(
            run,
            target.folder,
            EvaluationPlan(
                target.checkpoints,
                modes,
                options.tasks or run.evaluation.tasks,
                shuffled_too=options.shuffle_messages,
                attempts=options.attempts or run.evaluation.attempts,
                scenarios=scenarios,
                reorganized=target.reorganized,
            ),
            advance,
            target.check,
            storage=StorageOptions(target.output_folder.evaluations, options.rerun),
        )
    save_recipe(target)
    return [replace(result, checkpoint=target.base_name) if target.base_name else result for result in results]


def save_recipe(target: EvaluationTarget) -> None:
    """Update a run's report, or save the recipe for comparisons with another target."""
    from marft.evaluation.report import write_report
    from marft.evaluation.store import READ_ONLY_ERRORS

    try:
        if target.folder is not None:
            write_report(target.folder)
        elif not target.output_folder.config_path.is_file() or target.output_folder.config_path.read_text(
            encoding="utf-8"
        ) != to_toml(target.run):
            target.output_folder.write_config(target.run)
    except OSError as error:
        if error.errno not in READ_ONLY_ERRORS:
            raise
        logger.warning(f"nothing can be written in {target.output_folder.path} ({error.strerror}): it stays as it was")


def _evaluation_folder(run: RunSettings, name: str) -> RunFolder:
    return RunFolder(Path(run.output) / EVALUATED_FOLDER / name)
