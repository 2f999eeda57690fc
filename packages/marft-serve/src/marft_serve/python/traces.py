"""Python API for traces: scores, and a warm start."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.cli.python.arguments import check_roles, to_paths
from marft.cli.python.commands import (
    RecipeChanges,
    RecipeLike,
    explain_file_errors,
    load_recipe,
    resolve_run,
    train_run,
)
from marft.cli.python.run import Run
from marft.common.callbacks import Callback
from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.config.load import override_keys
from marft.config.run import RunSettings
from marft.runs.run_folder import RunFolder
from marft_serve.traces.settings import SftSettings

if TYPE_CHECKING:
    from marft_serve.traces.scores import Scores

logger = get_logger(__name__)
Traces = str | Path | Sequence[str | Path]


def score(
    recipe: RecipeLike | Run,
    traces: Traces = (),
    changes: RecipeChanges = (),
    /,
    *,
    roles: Mapping[str, str] | None = None,
    overwrite: bool = False,
    given: Iterable[Any] = (),
    **more: object,
) -> Scores:
    """Score traces with a recipe's environment and reward terms, without a model.

    The episodes are saved as a run for :func:`marft.load_run`, by default in ``runs/<name>-score``. Skipped items
    are logged.

    Args:
        recipe: a recipe or a run, as for :func:`marft.load_recipe`.
        traces: one or more files; by default ``sft.traces`` in the recipe.
        changes: changes of the recipe, as for :func:`marft.load_recipe`.
        roles: the recipe's role for each agent name in the traces.
        overwrite: True to replace an existing run.

    Raises:
        UserError: a file does not exist, or the recipe or folder is invalid.
        RunError: writing failed.
    """
    run, _ = _resolve_run(recipe, traces, changes, roles, given, more, "score")
    if not SftSettings.from_run(run).traces:
        raise UserError('no file of traces is named: marft_serve.score(recipe, "traces.jsonl")')
    folder = RunFolder(Path(run.output) / run.name)
    folder.check_free(overwrite)
    with explain_file_errors():
        from marft_serve.traces.scores import score_traces
        from marft_serve.traces.types import SkipCounter

        skip_counter = SkipCounter()
        scores = score_traces(run, folder, skip_counter, overwrite=overwrite)
        for line in skip_counter.format_lines():
            logger.warning(f"left out: {line}")
    return scores


def sft(
    recipe: RecipeLike | Run,
    traces: Traces = (),
    changes: RecipeChanges = (),
    /,
    *,
    roles: Mapping[str, str] | None = None,
    resume: bool = False,
    start_from: str | Path | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    given: Iterable[Any] = (),
    **more: object,
) -> Run:
    """Warm start a team from traces by imitation; return the run.

    Each policy learns only the turns of its own roles. :func:`marft.train` takes a checkpoint of the run
    (``start_from``).

    Args:
        recipe: as for :func:`marft.train`; the default name of the run is ``<name>-sft``.
        traces: one or more files; by default ``sft.traces`` in the recipe.
        changes: changes of the recipe, as for :func:`marft.load_recipe`.
        roles: the recipe's role for each agent name in the traces.
        resume: True to resume the run ``recipe``, exactly as if it had never stopped.
        start_from: checkpoint folder with the initial weights.
        overwrite: True to replace an existing run.
        callbacks: callbacks that observe the run, called in order. Without one, notes become warnings.

    Raises:
        UserError: the recipe, the traces or the folder are invalid. The folder is then unchanged.
        RunError: a step produced a non-finite value, or writing failed.
    """
    run, folder = _resolve_run(recipe, traces, changes, roles, given, more, "sft")

    def run_trainer(*arguments: Any, **options: Any) -> None:
        """Run the warm start."""
        from marft_serve.traces.warm_start import warm_start

        warm_start(*arguments, **options)

    return train_run(
        run, folder, run_trainer, resume=resume, start_from=start_from, overwrite=overwrite, callbacks=callbacks
    )


def _resolve_run(
    recipe: RecipeLike | Run,
    traces: Traces,
    changes: RecipeChanges,
    roles: Mapping[str, str] | None,
    given: Iterable[object],
    more: Mapping[str, object],
    command: str,
) -> tuple[RunSettings, RunFolder | None]:
    """Return the recipe with the given traces, and the folder for a resumed warm start."""
    from marft_serve.traces.roles import build_overrides

    run, folder = resolve_run(recipe, changes, given, more)
    overrides = build_overrides(run, to_paths(traces, "traces"), check_roles(roles))
    if folder and command == "sft":
        return (load_recipe(run, overrides) if overrides else run), folder
    keys = {*more, *(changes if isinstance(changes, Mapping) else override_keys(changes))}
    return load_recipe(run, overrides if "name" in keys else {**overrides, "name": f"{run.name}-{command}"}), None
