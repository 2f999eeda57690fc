"""``marft score`` and ``marft sft``: scores for traces, and a warm start from traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from marft.cli.console import INTERRUPTED, wide_console
from marft.cli.errors import set_run_folder
from marft.cli.handlers import silence_transformers
from marft.cli.output import OutputMode, open_output
from marft.config import RunSettings, load_recipe
from marft.config.load import override_keys
from marft.config.run import check_packages, check_trainable
from marft.evaluation.checkpoint_results import format_interval, format_percent
from marft.runs.run_folder import RunFolder
from marft_serve.traces.overrides import build_overrides
from marft_serve.traces.roles import parse_roles
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.types import SkipCounter

console = wide_console()


def run_score(
    recipe: Path,
    overrides: Sequence[str],
    traces: Sequence[Path],
    roles: Sequence[str],
    overwrite: bool,
    output_mode: OutputMode = "",
) -> None:
    """``marft score``."""
    run = _load_run(recipe, overrides, traces, roles, "score")
    if not SftSettings.from_run(run).traces:
        raise ValueError("no file of traces is named: marft score RECIPE --traces traces.jsonl")
    folder = RunFolder(Path(run.output) / run.name)
    folder.check_free(overwrite)
    silence_transformers()
    from marft_serve.traces.scores import score_traces

    skip_counter, names = SkipCounter(), [agent.role for agent in run.agents]
    with open_output(output_mode) as out:
        with Progress(
            TextColumn("scoring"),
            TextColumn("{task.completed} episodes"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=bool(output_mode) or not console.is_terminal,
        ) as progress:
            bar = progress.add_task("scoring", total=None)
            scores = score_traces(
                run, folder, skip_counter, overwrite=overwrite, on_episode=lambda _: progress.advance(bar)
            )
        out.print(f"{scores.episodes} episodes scored, {scores.dropped} could not be")
        if scores.accuracy is not None:
            interval = format_interval(scores.interval, format_percent)
            out.print(f"accuracy {format_percent(scores.accuracy)} ({interval}) of {scores.known_success}")
        table = scores.build_table(names) if scores.episodes else []
        if table:
            out.print(_build_table(table, names))
        for line in skip_counter.format_lines():
            out.print(Text(f"left out: {line}", style="yellow"))
            out.emit("note", step=None, text=f"left out: {line}")
        out.print(f"kept in {folder.path}: marft show {folder.path}")
        terms = {name: {"team": team, **dict(zip(names, agents, strict=True))} for name, team, agents in table}
        out.emit(
            "done",
            run=folder.path,
            episodes=scores.episodes,
            dropped=scores.dropped,
            accuracy=scores.accuracy,
            interval=scores.interval,
            known=scores.known_success,
            means=terms,
        )


def run_sft(
    recipe: Path,
    overrides: Sequence[str],
    traces: Sequence[Path],
    roles: Sequence[str],
    *,
    resume: bool,
    start_from: Path | None,
    overwrite: bool,
    output_mode: OutputMode = "",
) -> None:
    """``marft sft``.

    Raises:
        SystemExit: the run was interrupted; its progress is saved.
    """
    run, folder = _load_warm_start(recipe, overrides, traces, roles)
    check_trainable(run)
    check_packages(run)
    if resume:
        RunFolder.open(folder.path)
    else:
        folder.check_free(overwrite)
    set_run_folder(folder.path)
    silence_transformers()
    from marft.evaluation.report import write_report
    from marft_serve.traces.warm_start import warm_start

    with open_output(output_mode) as out:
        with out.build_callback(folder.path, [agent.role for agent in run.agents], 0, "imitating") as callback:
            result = warm_start(
                run, folder, resume=resume, start_from=start_from, overwrite=overwrite, callbacks=[callback]
            )
        write_report(folder)
        step, stopped = result.state.step, result.state.step < result.steps
        out.emit(
            "done",
            step=step,
            steps=result.steps,
            stopped=stopped,
            held_out=result.held_out_loss,
            run=folder.path,
            report=folder.report,
        )
        if stopped:
            out.print(f"stopped after step {step}. Go on with:  marft sft {folder.path} --resume")
            raise SystemExit(INTERRUPTED)
        last = folder.saved_steps()[-1]
        out.print(f"step {result.steps}; held out: {result.held_out_loss:.4f} nats a token. See {folder.report}, or:")
        out.print(f"  marft eval {folder.path}")
        out.print(f"  marft train {recipe} --init-from {last}")


def _load_warm_start(
    recipe: Path, overrides: Sequence[str], traces: Sequence[Path], roles: Sequence[str]
) -> tuple[RunSettings, RunFolder]:
    """Return settings and folder for a warm start, new or resumed."""
    if recipe.is_dir():
        folder = RunFolder.open(recipe)
        set_run_folder(folder.path)
        run = folder.relocated_settings(overrides, _build_changes(folder.relocated_settings(overrides), traces, roles))
        return run, folder
    run = _load_run(recipe, overrides, traces, roles, "sft")
    return run, RunFolder(Path(run.output) / run.name)


def _load_run(
    recipe: Path, overrides: Sequence[str], traces: Sequence[Path], roles: Sequence[str], command: str
) -> RunSettings:
    """Return a recipe with the command's traces; the default run name combines recipe and command."""
    run = load_recipe(recipe / "config.toml" if recipe.is_dir() else recipe, overrides)
    overrides_by_key = dict(_build_changes(run, traces, roles))
    if "name" not in override_keys(overrides):
        overrides_by_key["name"] = f"{run.name}-{command}"
    return load_recipe(recipe / "config.toml" if recipe.is_dir() else recipe, overrides, overrides_by_key)


def _build_changes(run: RunSettings, traces: Sequence[Path], roles: Sequence[str]) -> Mapping[str, object]:
    return build_overrides(run, traces, parse_roles(roles, [agent.role for agent in run.agents]))


def _build_table(rows: Sequence[tuple[str, float | None, Sequence[float | None]]], roles: Sequence[str]) -> Table:
    """Return a table with means per episode: one row per term, one column each for the team and the agents."""
    table = Table(box=None, pad_edge=False)
    table.add_column("a mean episode's")
    for heading in ("team", *roles):
        table.add_column(heading, justify="right")
    for name, team, agents in rows:
        cells = [f"{value:+.3f}" if value is not None else "" for value in (team, *agents)]
        table.add_row(*(Text(cell) for cell in (name, *cells)))
    return table
