"""Python function for the command ``marft worth``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.cli.python.arguments import check_count, check_path, check_text, to_names
from marft.cli.python.commands import RecipeChanges, explain_file_errors, resolve_run
from marft.cli.python.run import Run
from marft.common.errors import UserError
from marft.config.paths import expand_user
from marft_lab.team_evaluation.options import ComparisonOptions

if TYPE_CHECKING:
    from marft_lab.team_evaluation.session import TeamEvaluation


def worth(
    run: Run | str | Path,
    changes: RecipeChanges = (),
    /,
    *,
    checkpoint: str = "last",
    only: str | Sequence[str] = (),
    tasks: int = 0,
    samples: int = 1,
    attempts: int = 16,
    resamples: int = 3,
    crossed: str | Sequence[str] = ("base", "last", "best"),
    single: str | Path | None = None,
    paraphrase: str | Callable[[str], str] = "base",
    rerun: bool = False,
    given: Iterable[Any] = (),
    **more: Any,
) -> TeamEvaluation:
    """Measure the benefit of a run's team relative to its cost.

    The team is compared with a single agent at the same token budget, and with itself after changes to roles, weights
    or messages. The result is also written to the run's folder (docs: worth).

    Args:
        run: run or run folder.
        changes: overrides of recipe keys.
        checkpoint: checkpoint of the team.
        only: parts to run, from ``single``, ``swap``, ``leave-out``, ``ablation``, ``counterfactual``; empty for all.
        tasks: number of held-out tasks; 0 for the recipe's value.
        samples: attempts per task.
        attempts: maximum attempts of a single agent per task.
        resamples: number of resamples per action.
        crossed: checkpoints for cross-play.
        single: run of a single agent to compare with the team.
        paraphrase: source of paraphrased messages: ``base``, a policy, ``module:function`` or a function of a text; ""
            for none.
        rerun: True to ignore cached results and play again.
        given: Python objects that the recipe refers to by placeholder.
        more: overrides of recipe keys, as keyword arguments.

    Returns:
        The results of all parts.

    Raises:
        UserError: unknown run, checkpoint, part or policy, or invalid recipe.
        RunError: the result cannot be written.
    """
    for count, name in ((tasks, "tasks"), (samples, "samples"), (attempts, "attempts"), (resamples, "resamples")):
        check_count(count, name)
    check_text(checkpoint, "checkpoint")
    if not callable(paraphrase):
        check_text(paraphrase, "paraphrase")
    if single is not None:
        check_path(single, "single: a run")
    settings, folder = resolve_run(run, changes, given, more)
    if folder is None:
        raise UserError("what a team is worth is asked of a run that was trained: give it, or its folder")
    with explain_file_errors():
        from marft_lab.team_evaluation.report import write_report
        from marft_lab.team_evaluation.session import evaluate_team

        options = ComparisonOptions(
            checkpoint,
            to_names(only, "only", "single"),
            tasks,
            samples,
            attempts,
            resamples,
            to_names(crossed, "crossed", "last"),
            None if single is None else expand_user(single),
            paraphrase,
            bool(rerun),
        )
        result = evaluate_team(settings, folder, options, lambda _=None: None)
        write_report(folder.worth, result)
    return result
