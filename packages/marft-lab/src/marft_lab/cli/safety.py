"""Command ``marft eval --suite``: attacks, safety rules and promotion verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from marft.cli.errors import set_run_folder
from marft.cli.evaluation import EvaluationOptions, EvaluationTarget, resolve_target, save_recipe
from marft.cli.handlers import progress_bar, silence_transformers
from marft.cli.output import Output, OutputMode, open_output
from marft.common.errors import UserError
from marft.common.texts import single_line
from marft.evaluation.checkpoint_results import format_interval, format_percent

if TYPE_CHECKING:
    from marft.evaluation.evaluate import Evaluation
    from marft_lab.safety.suite import Suite

COLUMNS = (  # columns: heading, metric over all attacks, metric of one attack
    ("obeyed", "attack_success", "attacks/{}/success"),
    ("unprompted", "", "attacks/{}/unprompted"),
    ("read", "attack_reached", "attacks/{}/reached"),
    ("solved", "utility_under_attack", "attacks/{}/utility"),
    ("rules broken", "content_violation_rate_under_attack", ""),
)
# metric without an attack, by heading
BASELINE_METRICS = {"solved": "accuracy", "rules broken": "content_violation_rate"}


def evaluate(
    paths: Sequence[Path], overrides: Sequence[str], options: EvaluationOptions, output_mode: OutputMode = ""
) -> bool:
    """Evaluate every target on the suite; print a table of rates and a verdict per checkpoint.

    Args:
        paths: runs or exports to evaluate.
        overrides: command-line overrides of recipe keys.
        options: options of the command.
        output_mode: output format.

    Returns:
        True if no promotion was refused.

    Raises:
        UserError: an override changes the team's organization, or a gate lacks evaluations to compare.
    """
    options.check()
    targets = [resolve_target(path, overrides, options) for path in paths]
    changed = [path for path, target in zip(paths, targets, strict=True) if target.reorganized]
    if changed:
        raise UserError(f"--suite judges {changed[0]} as the team that it was trained as; leave out what changes that")
    silence_transformers()
    from marft_lab.safety.promotion import compute_promotions
    from marft_lab.safety.suite import check_gate, read_suite

    assert options.suite is not None, "whoever calls this has one"
    suite, promoted = read_suite(options.suite), True
    for gate in options.fail_if:
        check_gate(gate)
    single_targets = [path for path, target in zip(paths, targets, strict=True) if not _has_baseline(target)]
    if options.fail_if and single_targets:
        raise UserError(
            f"--fail-if: of {single_targets[0]} nothing is held against anything; evaluate base and another "
            "checkpoint, or hold two that were evaluated against each other:  marft compare BEFORE AFTER --fail-if …"
        )
    with open_output(output_mode) as out:
        for path, target in zip(paths, targets, strict=True):
            if len(targets) > 1:
                set_run_folder(target.output_folder.path)
            results = _evaluate_target(target, options, suite, out)
            evaluations = [result.as_json() for result in results]
            for result in results:
                out.emit("evaluation", target=path, **_evaluation_fields(result))
            if len(targets) > 1:
                out.print(Text(single_line(str(path)), style="bold"))
            out.print(_build_table(results, suite), "")
            verdicts = compute_promotions(suite, evaluations, options.fail_if)
            for verdict in verdicts:
                promoted &= verdict.is_granted
                out.print(Text(verdict.sentence, style="bold" if verdict.is_granted else "bold red"))
                for reason in verdict.comparison.reasons:
                    out.print(Text(f"  {single_line(reason)}"))
                out.emit("promotion", target=path, **verdict.as_json())
            if not verdicts:
                out.note(
                    "no gate was held against anything: evaluate base too, and give the suite gates (or --fail-if)"
                )
            out.print(f"saved in {target.output_folder.evaluations}")
    return promoted


def _has_baseline(target: EvaluationTarget) -> bool:
    """Return True if a target compares a checkpoint with the untuned base."""
    return "base" in target.checkpoints and len(set(target.checkpoints)) > 1


def _evaluate_target(
    target: EvaluationTarget, options: EvaluationOptions, suite: Suite, out: Output
) -> list[Evaluation]:
    from marft.evaluation.evaluate import parse_modes
    from marft_lab.safety.session import SuiteSize, evaluate_suite

    modes = parse_modes(options.mode.split(","), "--mode") if options.mode else suite.settings.modes
    size = SuiteSize(options.tasks or suite.settings.tasks, options.attempts or suite.settings.attempts, modes)
    with progress_bar("evaluating", enabled=not out.mode) as advance:
        results = evaluate_suite(target, suite, size, advance, overwrite=options.rerun)
    save_recipe(target)
    return results


def _evaluation_fields(result: Evaluation) -> dict[str, object]:
    """Return the fields of an evaluation for machine-readable output."""
    return {
        "checkpoint": result.checkpoint,
        "mode": result.mode,
        "suite": result.scenarios["name"],
        "tasks": result.tasks,
        "attempts": result.attempts,
        "failed": result.failed,
        "metrics": result.metrics,
    }


def _build_table(results: Sequence[Evaluation], suite: Suite) -> Table:
    """Return a table with rows per checkpoint: no attack, each attack, and all attacks.

    Cells are rates with 95 % intervals.
    """
    from marft.evaluation.gates import group_by_metric
    from marft.evaluation.ratios import clustered_interval

    table = Table(box=None, pad_edge=False)
    for heading in ("checkpoint", "mode", "attack", *(heading for heading, *_ in COLUMNS)):
        table.add_column(heading, overflow="fold")
    for result in results:
        ratios = group_by_metric(result.as_json())

        def cell(metric: str, ratios: Mapping[str, Any] = ratios, attempts: int = result.attempts) -> str:
            per = max((int(ratio.denominator) for ratio in ratios.get(metric, {}).values()), default=attempts)
            estimate = clustered_interval([*ratios.get(metric, {}).values()], per)
            return f"{format_percent(estimate[0])} ({format_interval(estimate[1], format_percent)})" if estimate else ""

        rows = [("none", [cell(BASELINE_METRICS.get(heading, "")) for heading, *_ in COLUMNS])]
        attacks = [name for name in suite.settings.attacks if f"attacks/{name}/reached" in ratios]
        rows += [(name, [cell(template.format(name)) for *_, template in COLUMNS]) for name in attacks]
        rows += [("all", [cell(total_metric) for _, total_metric, _ in COLUMNS])] if len(attacks) > 1 else []
        for name, cells in rows:
            table.add_row(*(Text(single_line(part)) for part in (result.checkpoint, result.mode, name, *cells)))
    return table
