"""What a run looks like in the terminal: a progress bar, and one readable line a step with one line an agent."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from marft.cli.samples import sample
from marft.evaluation.compare import between, number, percent
from marft.evaluation.transcripts import dropped
from marft.metrics import named
from marft.observing import Observer
from marft.texts import one_line, visible
from marft.types import Episode

TEAM = (
    "sft/loss", "sft/held_out_loss",
    "reward", "reward_std", "accuracy", "success_unknown", "validation_accuracy", "validation_reward", "policy_loss",
    "critic/loss", "critic/explained_variance", "zero_advantage_fraction", "kl_stops", "episodes_dropped",
    "workers_lost",
    "truncated_tokens", "skipped_updates", "undone_steps", "remote_cost", "judge/cost", "episodes_per_second",
    "seconds",
)  # fmt: skip
AGENT = (
    "sft/loss", "sft/held_out_loss",
    "action_length", "truncation_rate", "entropy", "kl", "kl_to_base", "clip_fraction", "gradient_share",
    "log_prob_difference_max", "policy_lag",
)  # fmt: skip
REASONS = 3  # why episodes were dropped, of a step's line
INTERRUPTED = 128 + signal.SIGINT  # the exit status of what Ctrl-C has ended


class Guard(RenderHook):
    """Lets nothing through that a terminal would obey, other than our own styles and cursor movements: much of what is
    printed was written by models, tasks and environments."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Guarded(renderable) for renderable in renderables]


class _Guarded:
    def __init__(self, renderable: ConsoleRenderable) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def guarded(console: Console) -> Console:
    """The console, under guard."""
    console.push_render_hook(Guard())
    return console


def wide_console() -> Console:
    """A console that neither wraps nor shortens what goes to a file or a pipe, reads no markup, and shows what others
    wrote as what it is."""
    width = None if sys.stdout.isatty() else 1000
    return guarded(Console(highlight=False, markup=False, emoji=False, width=width))


def in_bold(text: str) -> Text:
    return Text(text, style="bold")


class Terminal(Observer):
    """An observer of training that prints, and turns the first Ctrl-C into a wish to stop after the step."""

    def __init__(self, roles: Sequence[str], samples_every: int = 0, label: str = "training") -> None:
        """
        Args:
            samples_every: steps, of which one episode is shown; 0 shows none.
            label: of the progress bar.
        """
        self.roles, self.samples_every = roles, samples_every
        self.done = 0  # steps of the run before this training
        self._sample: Episode | None = None
        self._lost: list[Episode] = []
        self.console = wide_console()
        self.progress = Progress(
            TextColumn(label), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[activity]}"),
            TimeElapsedColumn(), TimeRemainingColumn(), console=self.console, transient=True,
        )  # fmt: skip
        self._task = self.progress.add_task("training", total=None, activity="")
        self._stop = False
        self._played = 0

    def __enter__(self) -> Terminal:
        self._handler = signal.signal(signal.SIGINT, self._interrupted)
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        signal.signal(signal.SIGINT, self._handler)

    def began(self, done: int, steps: int) -> None:
        self.done = done
        self.progress.update(self._task, completed=done, total=steps)

    def episode(self, episode: Episode) -> None:
        self._played += 1
        if not episode.scored:
            self._lost.append(episode)
        elif self._sample is None:
            self._sample = episode
        self.progress.update(self._task, activity=f"{self._played} episodes")

    def step(self, step: int, metrics: dict[str, float]) -> None:
        self._played = 0
        self.progress.update(self._task, completed=step)
        self.console.print(Text.assemble((f"step {step:4d}", "bold"), f"  {line(metrics, TEAM)}"), soft_wrap=True)
        for role in self.roles:
            said = line(metrics, AGENT, f"agents/{role}/")
            self.console.print(Text(f"  {role:>12}  {said}", style="dim"), soft_wrap=True)
        for reason, times in dropped(self._lost)[:REASONS]:
            self.console.print(Text(f"  {'dropped':>12}  {times} × {reason}", style="red"), soft_wrap=True)
        self._lost.clear()
        if self._sample and self.samples_every and step % self.samples_every == 0:
            for shown in sample(self._sample):
                self.console.print(shown, soft_wrap=True)
        self._sample = None

    def note(self, text: str) -> None:
        self.console.print(Text(text, style="yellow"), soft_wrap=True)

    def wants_stop(self) -> bool:
        return self._stop

    def _interrupted(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        self.note("stopping after this step; Ctrl-C again to stop at once")


def line(metrics: Mapping[str, float], names: Sequence[str], prefix: str = "") -> str:
    """``reward 0.64  accuracy 0.64 …``: what is there and says something.

    Args:
        prefix: of the metrics' names: ``agents/<role>/``.
    """
    words = []
    for name in names:
        metric, value = named(name), metrics.get(f"{prefix}{name}", math.nan)
        if math.isnan(value) or (value == 0 and metric.unless_zero):
            continue
        shown = metric.shown(value)
        words.append({"±": f"±{shown}", "s": f"{shown} s"}.get(metric.label, f"{metric.label} {shown}"))
    return "  ".join(words)


def evaluation_table(rows: Sequence[Mapping[str, Any]], targets: bool = False) -> Table:
    """Evaluations, one a row: accuracy where anything has one, and reward; what failed only where something did.

    Args:
        targets: each has a ``target``, which is shown.
    """
    table = Table(box=None, pad_edge=False)
    known = any(row["accuracy"] is not None for row in rows)
    unknown = known and any(row["unknown"] for row in rows)
    failed = any(row["failed"] for row in rows)
    columns = [
        *([("target", "left")] if targets else []),
        ("checkpoint", "left"), ("mode", "left"), ("messages", "left"), ("tasks", "right"),
        *([("accuracy", "right"), ("95 % interval", "left")] if known else []),
        *([("success unknown", "right")] if unknown else []),
        ("reward", "right"), ("95 % interval", "left"), *([("could not be scored", "right")] if failed else []),
    ]  # fmt: skip
    for heading, justify in columns:
        whole = " " not in heading  # words and numbers; what has room for less breaks where it must, and loses nothing
        right = justify == "right"
        table.add_column(heading, justify="right" if right else "left", no_wrap=whole, overflow="fold")
    for row in rows:
        messages = "shuffled" if row["shuffled_messages"] else "own"
        named = [row["target"]] if targets else []
        cells = [*named, row["checkpoint"], row["mode"], messages, str(row["tasks"])]
        if known:
            cells += [percent(row["accuracy"]), between(row["interval"], percent)]
        if unknown:
            cells.append(str(row["unknown"]))
        cells += [number(row["reward"]), between(row["reward_interval"], number)]
        if failed:
            cells.append(str(row["failed"]))
        table.add_row(*(Text(one_line(str(cell))) for cell in cells))
    return table


def passes_table(rows: Sequence[Mapping[str, Any]], targets: bool = False) -> Table:
    """Of evaluations with several attempts at a task, pass@k and avg@k with their intervals, one a row.

    Args:
        targets: each has a ``target``, which is shown.
    """
    table = Table(box=None, pad_edge=False)
    for heading in [*(["target"] if targets else []), "checkpoint", "mode", "over attempts", "share", "95 % interval"]:
        table.add_column(heading, justify="right" if heading == "share" else "left", overflow="fold")
    for row in rows:
        named = [row["target"]] if targets else []
        mode = row["mode"] + (" shuffled" if row["shuffled_messages"] else "")
        for name, (share, interval) in row["passes"].items():
            cells = [*named, row["checkpoint"], mode, name, percent(share), between(interval, percent)]
            table.add_row(*(Text(one_line(str(cell))) for cell in cells))
    return table
