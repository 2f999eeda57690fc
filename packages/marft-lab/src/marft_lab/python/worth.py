"""``marft worth`` from Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.cli.python.asked import check_count, check_place, check_text, names_in
from marft.cli.python.commands import Changes, in_words, run_of
from marft.cli.python.run import Run
from marft.config.folders import at_home
from marft_lab.team_worth.options import Options

if TYPE_CHECKING:
    from marft_lab.team_worth.session import Worth


def worth(
    run: Run | str | Path, changes: Changes = (), /, *, checkpoint: str = "last", only: str | Sequence[str] = (),
    tasks: int = 0, samples: int = 1, attempts: int = 16, resamples: int = 3,
    crossed: str | Sequence[str] = ("base", "last", "best"), single: str | Path | None = None,
    paraphrase: str | Callable[[str], str] = "base", again: bool = False, given: Iterable[Any] = (), **more: Any,
) -> Worth:  # fmt: skip
    """Whether a run's team is worth what it costs: against one agent at the same tokens, and against itself with seats,
    weights or messages changed. What comes out is written to the run's folder too (docs: worth).

    Args:
        run: a run, or its folder.
        checkpoint: whose team it is.
        only: some of ``single``, ``swap``, ``leave-out``, ``ablation``, ``counterfactual``; none: all.
        tasks: how many held-out tasks; 0: as the recipe says.
        samples: attempts at each task.
        attempts: of a single agent at each task, at most.
        resamples: how often each action is sampled again.
        crossed: checkpoints that play together.
        single: a run of one agent, to hold against the team too.
        paraphrase: who says messages in other words: ``base``, a policy, ``module:function`` or a function of a text;
            "": nobody.
        again: play what was played before, too.

    Raises:
        ValueError: there is no such run, checkpoint, part or policy, or the recipe cannot be used.
        RunError: nothing can be written.
    """
    for count, what in ((tasks, "tasks"), (samples, "samples"), (attempts, "attempts"), (resamples, "resamples")):
        check_count(count, what)
    check_text(checkpoint, "checkpoint")
    if not callable(paraphrase):
        check_text(paraphrase, "paraphrase")
    if single is not None:
        check_place(single, "single: a run")
    settings, folder = run_of(run, changes, given, more)
    if folder is None:
        raise ValueError("what a team is worth is asked of a run that was trained: give it, or its folder")
    with in_words():
        from marft_lab.team_worth.session import worth_of
        from marft_lab.team_worth.written import write_worth

        wanted = Options(
            checkpoint, names_in(only, "only", "single"), tasks, samples, attempts, resamples,
            names_in(crossed, "crossed", "last"), None if single is None else at_home(single), paraphrase, bool(again),
        )  # fmt: skip
        found = worth_of(settings, folder, wanted, lambda _=None: None)
        write_worth(folder.worth, found)
    return found
