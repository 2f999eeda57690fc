"""Command ``marft eval --suite``: attacks, safety rules and promotion verdicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from marft.cli.commands import bar, quieten
from marft.cli.errors import beside
from marft.cli.evaluating import Asked, Target, keep_recipe, target_of
from marft.cli.output import How, Output, output
from marft.common.texts import one_line
from marft.evaluation.compare import percent

if TYPE_CHECKING:
    from marft.evaluation.evaluate import Evaluation
    from marft_lab.safety.suite import Suite

SHOWN = (  # columns: heading, metric over all attacks, metric of one attack
    ("obeyed", "attack_success", "attacks/{}/success"),
    ("unprompted", "", "attacks/{}/unprompted"),
    ("read", "attack_reached", "attacks/{}/reached"),
    ("solved", "utility_under_attack", "attacks/{}/utility"),
    ("rules broken", "content_violation_rate_under_attack", ""),
)
ALONE = {"solved": "accuracy", "rules broken": "content_violation_rate"}  # metric without an attack, by heading


def evaluate(paths: Sequence[Path], overrides: Sequence[str], asked: Asked, how: How = "") -> bool:
    """Evaluate every target on the suite; print a table of rates and a verdict per checkpoint.

    Args:
        paths: runs or exports to evaluate.
        overrides: command-line overrides of recipe keys.
        asked: options of the command.
        how: output format.

    Returns:
        True if no promotion was refused.

    Raises:
        ValueError: an override changes the team's organization, or a gate lacks evaluations to compare.
    """
    asked.check()
    targets = [target_of(path, overrides, asked) for path in paths]
    changed = [path for path, target in zip(paths, targets, strict=True) if target.reorganized]
    if changed:
        raise ValueError(f"--suite judges {changed[0]} as the team that it was trained as; leave out what changes that")
    quieten()
    from marft_lab.safety.promotion import promotions
    from marft_lab.safety.suite import check_gate, read_suite

    assert asked.suite is not None, "whoever calls this has one"
    suite, granted = read_suite(asked.suite), True
    for gate in asked.fail_if:
        check_gate(gate)
    lonely = [path for path, target in zip(paths, targets, strict=True) if not _has_two(target)]
    if asked.fail_if and lonely:
        raise ValueError(
            f"--fail-if: of {lonely[0]} nothing is held against anything; evaluate base and another checkpoint, or "
            "hold two that were evaluated against each other:  marft compare BEFORE AFTER --fail-if …"
        )
    with output(how) as out:
        for path, target in zip(paths, targets, strict=True):
            if len(targets) > 1:
                beside(target.kept.path)
            results = _evaluated(target, asked, suite, out)
            found = [result.as_json() for result in results]
            for result in results:
                out.tell("evaluation", target=path, **_told(result))
            if len(targets) > 1:
                out.say(Text(one_line(str(path)), style="bold"))
            out.say(_table(results, suite), "")
            verdicts = promotions(suite, found, asked.fail_if)
            for verdict in verdicts:
                granted &= verdict.granted
                out.say(Text(verdict.sentence, style="bold" if verdict.granted else "bold red"))
                for reason in verdict.comparison.reasons:
                    out.say(Text(f"  {one_line(reason)}"))
                out.tell("promotion", target=path, **verdict.as_json())
            if not verdicts:
                out.note(
                    "no gate was held against anything: evaluate base too, and give the suite gates (or --fail-if)"
                )
            out.say(f"saved in {target.kept.evaluations}")
    return granted


def _has_two(target: Target) -> bool:
    """Return True if a target compares a checkpoint with the untuned base."""
    return "base" in target.checkpoints and len(set(target.checkpoints)) > 1


def _evaluated(target: Target, asked: Asked, suite: Suite, out: Output) -> list[Evaluation]:
    from marft.evaluation.evaluate import modes_in
    from marft.evaluation.session import Keeping
    from marft_lab.safety.session import Size, evaluate_suite

    modes = modes_in(asked.mode.split(","), "--mode") if asked.mode else suite.settings.modes
    size = Size(asked.tasks or suite.settings.tasks, asked.attempts or suite.settings.attempts, modes)
    keeping = Keeping(target.kept.evaluations, asked.again)
    with bar("evaluating", shown=not out.how) as advance:
        results = evaluate_suite(
            target.run, target.folder, target.checkpoints, suite, size, keeping, advance, out.note, target.check
        )
    keep_recipe(target, out.note)
    return results


def _told(result: Evaluation) -> dict[str, Any]:
    """Return the fields of an evaluation for machine-readable output."""
    return {
        "checkpoint": result.checkpoint, "mode": result.mode, "suite": result.scenarios["name"], "tasks": result.tasks,
        "attempts": result.attempts, "failed": result.failed, "metrics": result.metrics,
    }  # fmt: skip


def _table(results: Sequence[Evaluation], suite: Suite) -> Table:
    """Return a table with rows per checkpoint: no attack, each attack, and all attacks.

    Cells are rates with 95 % intervals.
    """
    from marft.evaluation.gates import by_metric
    from marft.evaluation.shares import clustered

    table = Table(box=None, pad_edge=False)
    for heading in ("checkpoint", "mode", "attack", *(heading for heading, *_ in SHOWN)):
        table.add_column(heading, overflow="fold")
    for result in results:
        measured = by_metric(result.as_json())

        def cell(metric: str, measured: Mapping[str, Any] = measured, attempts: int = result.attempts) -> str:
            per = max((int(ratio.out_of) for ratio in measured.get(metric, {}).values()), default=attempts)
            found = clustered([*measured.get(metric, {}).values()], per)
            return f"{percent(found[0])} ({percent(found[1][0])} to {percent(found[1][1])})" if found else ""

        rows = [("none", [cell(ALONE.get(heading, "")) for heading, *_ in SHOWN])]
        attacks = [name for name in suite.settings.attacks if f"attacks/{name}/reached" in measured]
        rows += [(name, [cell(one.format(name)) for *_, one in SHOWN]) for name in attacks]
        rows += [("all", [cell(every) for _, every, _ in SHOWN])] if len(attacks) > 1 else []
        for name, cells in rows:
            table.add_row(*(Text(one_line(part)) for part in (result.checkpoint, result.mode, name, *cells)))
    return table
