"""Traces of other programs, from Python: what they are worth, and a warm start from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.cli.python.asked import check_roles, places_in
from marft.cli.python.commands import Changes, Recipe, Warned, in_words, learned, load_recipe, run_of
from marft.cli.python.run import Run
from marft.common.observing import Observer
from marft.config.load import keys_of
from marft.config.run import RunSettings
from marft.runs.folder import RunFolder
from marft_serve.traces.settings import SftSettings

if TYPE_CHECKING:
    from marft_serve.traces.scores import Scores

Traces = str | Path | Sequence[str | Path]


def score(
    recipe: Recipe | Run, traces: Traces = (), changes: Changes = (), /, *, roles: Mapping[str, str] | None = None,
    overwrite: bool = False, given: Iterable[Any] = (), **more: Any,
) -> Scores:  # fmt: skip
    """Grade traces by the environment and the reward terms of a recipe, without a model → what they earned.

    The episodes are kept as a run, ``runs/<name>-score`` where no name is given: :func:`marft.load_run` reads them.
    What had to be left out is a warning.

    Args:
        traces: a file or several; none: those of the recipe (``sft.traces``).
        roles: whose turns those of a name in the traces are.

    Raises:
        ValueError: a file is not there, or something in the recipe or the folder cannot be used.
        RunError: nothing can be written.
    """
    run, _ = _run_of(recipe, traces, changes, roles, given, more, "score")
    if not SftSettings.of(run).traces:
        raise ValueError('no file of traces is named: marft_serve.score(recipe, "traces.jsonl")')
    folder = RunFolder(Path(run.output) / run.name)
    folder.check_free(overwrite)
    with in_words():
        from marft_serve.traces.record import Tally
        from marft_serve.traces.scores import score as score_traces

        tally, observer = Tally(), Warned()
        scores = score_traces(run, folder, tally, overwrite=overwrite)
        for line in tally.lines():
            observer.note(f"left out: {line}")
    return scores


def sft(
    recipe: Recipe | Run, traces: Traces = (), changes: Changes = (), /, *, roles: Mapping[str, str] | None = None,
    resume: bool = False, start_from: str | Path | None = None, overwrite: bool = False,
    observer: Observer | None = None, given: Iterable[Any] = (), **more: Any,
) -> Run:  # fmt: skip
    """Warm start a team from traces, by imitation: each policy of its own roles' turns alone → the run, of which
    :func:`marft.train` takes a checkpoint (``start_from``).

    Args:
        recipe: as in :func:`marft.train`; the run is called ``<name>-sft`` where no name is given.
        traces: a file or several; none: those of the recipe (``sft.traces``).
        roles: whose turns those of a name in the traces are.
        resume: go on with such a run, exactly as if it had never stopped; then ``recipe`` is the run.
        start_from: a checkpoint folder whose weights it begins with.

    Raises:
        ValueError: something in the recipe, the traces or the folder cannot be used. Then the folder is as it was.
        RunError: a step left something that is not finite, or nothing can be written.
    """
    run, folder = _run_of(recipe, traces, changes, roles, given, more, "sft")

    def learn(*arguments: Any, **options: Any) -> None:
        from marft_serve.traces.warm_start import warm_start

        warm_start(*arguments, **options)

    return learned(run, folder, learn, resume=resume, start_from=start_from, overwrite=overwrite, observer=observer)


def _run_of(
    recipe: Recipe | Run, traces: Traces, changes: Changes, roles: Mapping[str, str] | None, given: Iterable[Any],
    more: Mapping[str, Any], what: str,
) -> tuple[RunSettings, RunFolder | None]:  # fmt: skip
    """The recipe with these traces; and the folder of a warm start that goes on."""
    from marft_serve.traces.asked import changes_of

    run, folder = run_of(recipe, changes, given, more)
    asked = changes_of(run, places_in(traces, "traces"), check_roles(roles))
    if folder and what == "sft":
        return (load_recipe(run, asked) if asked else run), folder
    keys = {*more, *(changes if isinstance(changes, Mapping) else keys_of(changes))}
    return load_recipe(run, asked if "name" in keys else {**asked, "name": f"{run.name}-{what}"}), None
