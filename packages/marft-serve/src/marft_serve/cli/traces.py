"""``marft score`` and ``marft sft``: scores for traces, and a warm start from traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from marft.cli.commands import quieten
from marft.cli.console import INTERRUPTED, wide_console
from marft.cli.errors import beside
from marft.cli.output import How, output
from marft.config import RunSettings, load_recipe
from marft.config.load import keys_of
from marft.config.run import refuse_missing_packages, refuse_nothing_to_train
from marft.evaluation.compare import between, percent
from marft.runs.folder import RunFolder
from marft_serve.traces.asked import changes_of
from marft_serve.traces.record import Tally
from marft_serve.traces.roles import given_roles
from marft_serve.traces.settings import SftSettings

console = wide_console()


def score(
    recipe: Path, overrides: Sequence[str], traces: Sequence[Path], roles: Sequence[str], overwrite: bool,
    how: How = "",
) -> None:  # fmt: skip
    """``marft score``."""
    run = _recipe_of(recipe, overrides, traces, roles, "score")
    if not SftSettings.of(run).traces:
        raise ValueError("no file of traces is named: marft score RECIPE --from traces.jsonl")
    folder = RunFolder(Path(run.output) / run.name)
    folder.check_free(overwrite)
    quieten()
    from marft_serve.traces.scores import score as score_traces

    tally, names = Tally(), [agent.role for agent in run.agents]
    with output(how) as out:
        with Progress(
            TextColumn("scoring"), TextColumn("{task.completed} episodes"), TimeElapsedColumn(), console=console,
            transient=True, disable=bool(how) or not console.is_terminal,
        ) as progress:  # fmt: skip
            bar = progress.add_task("scoring", total=None)
            scores = score_traces(run, folder, tally, overwrite=overwrite, on_done=lambda _: progress.advance(bar))
        out.say(f"{scores.episodes} episodes scored, {scores.dropped} could not be")
        if scores.accuracy is not None:
            interval = between(scores.interval, percent)
            out.say(f"accuracy {percent(scores.accuracy)} ({interval}) of {scores.known}")
        table = scores.table(names) if scores.episodes else []
        if table:
            out.say(_table(table, names))
        for line in tally.lines():
            out.say(Text(f"left out: {line}", style="yellow"))
            out.tell("note", step=None, text=f"left out: {line}")
        out.say(f"kept in {folder.path}: marft show {folder.path}")
        terms = {name: {"team": team, **dict(zip(names, agents, strict=True))} for name, team, agents in table}
        out.tell(
            "done", run=folder.path, episodes=scores.episodes, dropped=scores.dropped, accuracy=scores.accuracy,
            interval=scores.interval, known=scores.known, means=terms,
        )  # fmt: skip


def sft(
    recipe: Path, overrides: Sequence[str], traces: Sequence[Path], roles: Sequence[str], *, resume: bool,
    start_from: Path | None, overwrite: bool, how: How = "",
) -> None:  # fmt: skip
    """``marft sft``.

    Raises:
        SystemExit: the run was interrupted; its progress is saved.
    """
    run, folder = _warm_start_of(recipe, overrides, traces, roles)
    refuse_nothing_to_train(run)
    refuse_missing_packages(run)
    if resume:
        RunFolder.open(folder.path)
    else:
        folder.check_free(overwrite)
    beside(folder.path)
    quieten()
    from marft.evaluation.report import write_report
    from marft_serve.traces.warm_start import warm_start

    with output(how) as out:
        with out.observer(folder.path, [agent.role for agent in run.agents], 0, "imitating") as seen:
            done = warm_start(run, folder, resume=resume, start_from=start_from, overwrite=overwrite, observer=seen)
        write_report(folder)
        step, stopped = done.state.step, done.state.step < done.steps
        out.tell(
            "done", step=step, steps=done.steps, stopped=stopped, held_out=done.held_out, run=folder.path,
            report=folder.report,
        )  # fmt: skip
        if stopped:
            out.say(f"stopped after step {step}. Go on with:  marft sft {folder.path} --resume")
            raise SystemExit(INTERRUPTED)
        last = folder.saved_steps()[-1]
        out.say(f"step {done.steps}; held out: {done.held_out:.4f} nats a token. See {folder.report}, or:")
        out.say(f"  marft eval {folder.path}")
        out.say(f"  marft train {recipe} --from {last}")


def _warm_start_of(
    recipe: Path, overrides: Sequence[str], traces: Sequence[Path], roles: Sequence[str]
) -> tuple[RunSettings, RunFolder]:
    """Return settings and folder for a warm start, new or resumed."""
    if recipe.is_dir():
        folder = RunFolder.open(recipe)
        beside(folder.path)
        run = folder.settings_in_place(overrides, _changes(folder.settings_in_place(overrides), traces, roles))
        return run, folder
    run = _recipe_of(recipe, overrides, traces, roles, "sft")
    return run, RunFolder(Path(run.output) / run.name)


def _recipe_of(
    recipe: Path, overrides: Sequence[str], traces: Sequence[Path], roles: Sequence[str], what: str
) -> RunSettings:
    """Return a recipe with the command's traces; the default run name combines recipe and command."""
    run = load_recipe(recipe / "config.toml" if recipe.is_dir() else recipe, overrides)
    changes = dict(_changes(run, traces, roles))
    if "name" not in keys_of(overrides):
        changes["name"] = f"{run.name}-{what}"
    return load_recipe(recipe / "config.toml" if recipe.is_dir() else recipe, overrides, changes)


def _changes(run: RunSettings, traces: Sequence[Path], roles: Sequence[str]) -> Mapping[str, object]:
    return changes_of(run, traces, given_roles(roles, [agent.role for agent in run.agents]))


def _table(rows: Sequence[tuple[str, float | None, Sequence[float | None]]], roles: Sequence[str]) -> Table:
    """Return a table with means per episode: one row per term, one column each for the team and the agents."""
    table = Table(box=None, pad_edge=False)
    table.add_column("a mean episode's")
    for heading in ("team", *roles):
        table.add_column(heading, justify="right")
    for name, team, agents in rows:
        cells = [f"{value:+.3f}" if value is not None else "" for value in (team, *agents)]
        table.add_row(*(Text(cell) for cell in (name, *cells)))
    return table
