"""``marft score``, ``marft sft`` and ``marft trace``: scores, a warm start, and an export as OpenTelemetry spans."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from marft.cli.console import INTERRUPTED, wide_console
from marft.cli.errors import open_run_for_command, set_run_folder
from marft.cli.handlers import silence_transformers
from marft.cli.output import OutputMode, open_output
from marft.common.errors import RunError, UserError
from marft.common.texts import sanitize
from marft.config import RunSettings, load_recipe
from marft.config.load import override_keys
from marft.config.run import check_packages, check_trainable
from marft.evaluation.checkpoint_results import format_interval, format_percent
from marft.runs.run_folder import RunFolder
from marft_serve.traces.roles import build_overrides, parse_roles
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.types import SkipCounter
from marft_serve.tracing.otlp import check_installed, encode_protobuf
from marft_serve.tracing.receiver import ExportError, Receiver, build_traces_url, parse_headers
from marft_serve.tracing.recorded_episodes import (
    ExportProgress,
    Recording,
    SendSpans,
    open_trace_file,
)

console = wide_console()
RETRY_HINT = "Nothing is lost: the same command sends them again, under the same ids"


@dataclass(frozen=True, slots=True)
class RecipeWithTraces:
    """Recipe with the traces of a command.

    Args:
        recipe: recipe file, or folder of a run.
        overrides: overrides of the recipe.
        traces: trace files; empty for those of the recipe.
        roles: ``name in the traces=role`` for each given name.
    """

    recipe: Path
    overrides: Sequence[str]
    traces: Sequence[Path] = ()
    roles: Sequence[str] = ()

    def load(self, command: str) -> RunSettings:
        """Return the settings; the default run name combines recipe and command."""
        path = self.recipe / "config.toml" if self.recipe.is_dir() else self.recipe
        run = load_recipe(path, self.overrides)
        changes = self.build_changes(run)
        if "name" not in override_keys(self.overrides):
            changes["name"] = f"{run.name}-{command}"
        return load_recipe(path, self.overrides, changes)

    def load_warm_start(self) -> tuple[RunSettings, RunFolder]:
        """Return settings and folder for a warm start, new or resumed."""
        if self.recipe.is_dir():
            folder = open_run_for_command(self.recipe)
            changes = self.build_changes(folder.relocated_settings(self.overrides))
            return folder.relocated_settings(self.overrides, changes), folder
        run = self.load("sft")
        return run, RunFolder(Path(run.output) / run.name)

    def build_changes(self, run: RunSettings) -> dict[str, object]:
        """Return the recipe's changes by key."""
        return build_overrides(run, self.traces, parse_roles(self.roles, [agent.role for agent in run.agents]))


def run_score(recipe: RecipeWithTraces, overwrite: bool, output_mode: OutputMode = "") -> None:
    """``marft score``."""
    run = recipe.load("score")
    if not SftSettings.from_run(run).traces:
        raise UserError("no file of traces is named: marft score RECIPE --traces traces.jsonl")
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
    recipe: RecipeWithTraces,
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
    run, folder = recipe.load_warm_start()
    check_trainable(run)
    check_packages(run)
    folder.check_usable(resume, overwrite)
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
        is_resumed = callback.completed_steps > 0  # the loss before its first step is not known any more
        learned = True if is_resumed else result.learned
        before = math.nan if is_resumed else result.initial_held_out_loss
        step, stopped = result.state.step, result.state.step < result.steps
        out.emit(
            "done",
            step=step,
            steps=result.steps,
            stopped=stopped,
            learned=learned,
            held_out_before=before,
            held_out=result.held_out_loss,
            run=folder.path,
            report=folder.report_path,
        )
        if stopped:
            out.print(f"stopped after step {step}. Go on with:  marft sft {folder.path} --resume")
            raise SystemExit(INTERRUPTED)
        last = folder.saved_steps()[-1]
        start = "" if math.isnan(before) else f"{before:.4f} → "
        after = (
            ""
            if math.isnan(result.held_out_loss)
            else f"; held-out loss {start}{result.held_out_loss:.4f} nats per token"
        )
        out.print(f"step {result.steps}{after}. See {folder.report_path}, or:")
        out.print(f"  marft eval {folder.path}")
        out.print(f"  marft train {recipe.recipe} --init-from {last}")
        if not learned:
            out.print(
                "the held-out loss did not fall: raise sft.epochs or sft.learning_rate, or check that the recordings "
                "show what the agents should write (marft score)"
            )


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


def run_trace(
    recording: Recording, otlp: str, file: Path | None, headers: Sequence[str], timeout: float, content: bool
) -> None:
    """``marft trace``.

    Raises:
        UserError: there is nothing to export, or the destination is invalid.
        RunError: the endpoint did not accept everything; the message gives the progress.
        SystemExit: Ctrl-C.
    """
    if bool(otlp) == bool(file):
        raise UserError("say where to:  --otlp http://localhost:4318  or  --output traces.jsonl")
    if file and headers:
        raise UserError("--header goes with --otlp")
    if file:
        with open_trace_file(file) as write_spans:
            progress = _export(recording, write_spans, content)
        _print_line(f"{progress} written to {file}")
        return
    check_installed()
    receiver = Receiver(build_traces_url(otlp), parse_headers(headers), timeout)
    progress = _export(recording, lambda spans, resource: receiver.send(encode_protobuf(spans, resource)), content)
    if progress.rejected:
        raise RunError(
            f"{progress} sent, of which the receiver did not take {'; '.join(dict.fromkeys(progress.rejected))}"
        )
    _print_line(f"{progress} sent to {otlp}")


def _export(recording: Recording, send_spans: SendSpans, content: bool) -> ExportProgress:
    progress_counts = ExportProgress()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = wide_console()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("files of episodes", total=len(recording.files))
        try:
            recording.export(send_spans, content, progress_counts, lambda: progress.advance(bar))
        except ExportError as error:
            raise RunError(f"{progress_counts} sent, then no more: {error}. {RETRY_HINT}") from error
        except KeyboardInterrupt:
            progress.stop()
            _print_line(f"stopped: {progress_counts} sent. {RETRY_HINT}")
            raise SystemExit(INTERRUPTED) from None
    return progress_counts


def _print_line(text: str) -> None:
    wide_console().print(Text(sanitize(text)), soft_wrap=True)
