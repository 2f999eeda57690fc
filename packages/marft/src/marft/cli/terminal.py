"""Terminal display of a run: one line per step and agent, with progress below."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from marft.cli.console import wide_console
from marft.cli.progress import TimeEstimate, sparkline
from marft.cli.samples import render_sample
from marft.cli.step_lines import AgentLineFormatter, format_team_line
from marft.common.callbacks import Callback
from marft.common.metrics import catalog_metric
from marft.common.types import Episode
from marft.evaluation.transcripts import count_failure_reasons

FILE_WIDTH = 10_000  # columns of a file or a pipe
MAX_REASONS = 3  # maximum reasons for dropped episodes per step
CURVE_METRICS = (("sft/loss", "reward"), ("sft/held_out_loss", "accuracy"))  # the first available metric of each pair
MAX_BAR_WIDTH, MAX_CURVE_WIDTH = 24, 48  # maximum widths in columns
STOP_MESSAGE = "stopping after this step; Ctrl-C again to stop at once"


class InterruptibleCallback(Callback):
    """Callback that stops training after the current step on the first Ctrl-C; the second Ctrl-C ends the command."""

    completed_steps = 0  # steps done before this training
    _stop_requested = False

    def __enter__(self) -> Self:
        self._handler = signal.signal(signal.SIGINT, self._handle_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._handler)

    def on_train_start(self, completed_steps: int, steps: int) -> None:  # noqa: ARG002
        """Store the steps done before."""
        self.completed_steps = completed_steps

    def wants_stop(self) -> bool:
        """Return True after the first Ctrl-C."""
        return self._stop_requested

    def _handle_interrupt(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._stop_requested:
            raise KeyboardInterrupt
        self._stop_requested = True
        self.on_note(STOP_MESSAGE)


class QuietCallback(InterruptibleCallback):
    """Callback that prints only notes, guards, and new reasons for dropped episodes."""

    def __init__(self) -> None:
        self.console = wide_console()
        self._dropped_episodes: list[Episode] = []
        self._seen_reasons: set[str] = set()

    def on_episode(self, episode: Episode) -> None:
        """Collect an episode without a score."""
        if not episode.is_scored:
            self._dropped_episodes.append(episode)

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:  # noqa: ARG002
        """Print reasons for dropped episodes, each reason once per run."""
        for reason, times in count_failure_reasons(self._dropped_episodes):
            if reason not in self._seen_reasons:
                self._seen_reasons.add(reason)
                self.console.print(Text(f"step {step}: dropped  {times} × {reason}", style="red"), soft_wrap=True)
        self._dropped_episodes.clear()

    def on_guard(self, step: int, name: str, sentence: str) -> None:
        """Print a guard."""
        self.console.print(Text(f"step {step}: guard {name}: {sentence}", style="red"), soft_wrap=True)

    def on_note(self, text: str) -> None:
        """Print a note."""
        self.console.print(Text(text, style="yellow"), soft_wrap=True)


class TerminalCallback(InterruptibleCallback):
    """Callback that prints every step, with a progress display on terminals."""

    def __init__(self, roles: Sequence[str], sample_interval: int = 0, label: str = "training") -> None:
        """Create the display.

        Args:
            roles: roles of the team, one line each.
            sample_interval: steps between sample episodes; 0: none.
            label: label of the progress bar.
        """
        self.roles, self.sample_interval = roles, sample_interval
        self._lines = AgentLineFormatter(roles)
        self._sample: Episode | None = None
        self._dropped_episodes: list[Episode] = []
        self._guards: list[tuple[str, str]] = []
        self.console = wide_console()
        self.progress = ProgressDisplay(label)

    def __enter__(self) -> Self:
        super().__enter__()
        self._live = Live(self.progress, console=self.console, transient=True, refresh_per_second=4)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        super().__exit__()

    def on_train_start(self, completed_steps: int, steps: int) -> None:
        """Start the progress display."""
        super().on_train_start(completed_steps, steps)
        self.progress.start(completed_steps, steps)

    def on_episode(self, episode: Episode) -> None:
        """Count an episode, and keep it as sample or as dropped."""
        self.progress.num_episodes += 1
        if not episode.is_scored:
            self._dropped_episodes.append(episode)
        elif self._sample is None:
            self._sample = episode

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        """Print the step's lines."""
        self.progress.end_step(step, metrics)
        width = self.console.width if self.console.is_terminal else FILE_WIDTH
        number = f"step {step:4d}"
        text = format_team_line(metrics, width - len(number) - 2)
        self._print(Text.assemble((number, "bold"), f"  {text}"))
        for name, sentence in self._guards:
            self._print(Text(f"  {'guard ' + name:>12}  {sentence}", style="red"))
        self._guards.clear()
        for role in self.roles:
            self._print(Text(self._lines.format_line(role, metrics, width), style="dim"))
        for reason, times in count_failure_reasons(self._dropped_episodes)[:MAX_REASONS]:
            self._print(Text(f"  {'dropped':>12}  {times} × {reason}", style="red"))
        self._dropped_episodes.clear()
        if self._sample and self.sample_interval and step % self.sample_interval == 0:
            for line in render_sample(self._sample):
                self._print(line)
        self._sample = None

    def on_guard(self, step: int, name: str, sentence: str) -> None:  # noqa: ARG002
        """Keep a guard for the step's lines."""
        self._guards.append((name, sentence))

    def on_note(self, text: str) -> None:
        """Print a note."""
        self._print(Text(text, style="yellow"))

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)


class ProgressDisplay:
    """Progress display: bar, remaining time, and curves of the main metrics."""

    def __init__(self, label: str, read_clock: Callable[[], float] = time.monotonic) -> None:
        self.num_episodes = 0  # episodes of the current step
        self._label, self._read_clock = label, read_clock
        self._completed_steps, self._steps = 0, 0
        self._eta = TimeEstimate()
        self._start_time = read_clock()
        self._values: dict[str, list[float]] = {}

    def start(self, completed_steps: int, steps: int) -> None:
        """Set the finished and total steps."""
        self._completed_steps, self._steps = completed_steps, steps
        self._eta.update(self._read_clock())

    def end_step(self, step: int, metrics: dict[str, float]) -> None:
        """Record the end of a step."""
        self.num_episodes, self._completed_steps = 0, step
        self._eta.update(self._read_clock())
        for names in CURVE_METRICS:
            for name in names:
                if name in metrics:
                    self._values.setdefault(name, []).append(metrics[name])

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render the lines, cropped to the terminal's width."""
        for text in self.lines(options.max_width, console.encoding.startswith("utf")):
            text.truncate(options.max_width, overflow="crop")
            yield text

    def lines(self, width: int, blocks: bool = True) -> list[Text]:
        """Return the display's lines.

        Args:
            width: available width in columns.
            blocks: True if the terminal supports block characters; without them there are no curves.
        """
        timestamp = self._read_clock()
        head = Text(self._label)
        if not self._steps:
            return [head.append("  getting ready")]
        full, empty = ("━", "╺") if blocks else ("#", ".")
        room = max(0, min(MAX_BAR_WIDTH, width - 60))
        part = room * min(self._completed_steps, self._steps) // self._steps
        if room:
            head.append("  ").append(full * part, style="green").append(empty * (room - part), style="dim")
        head.append(f"  {self._completed_steps}/{self._steps}")
        head.append(f"  {self._eta.format(self._steps - self._completed_steps, timestamp)}")
        if self.num_episodes:
            head.append(f"  {self.num_episodes} episodes", style="dim")
        return [head, *(self._sparklines(width) if blocks else [])]

    def _sparklines(self, width: int) -> list[Text]:
        lines = []
        for names in CURVE_METRICS:
            name = next((name for name in names if len(self._values.get(name, ())) > 1), "")
            if name:
                metric, values = catalog_metric(name), self._values[name]
                last = next((metric.format_value(value) for value in reversed(values) if math.isfinite(value)), "")
                label = f"{metric.label:>14}  "
                sparkline_text = sparkline(values, max(8, min(MAX_CURVE_WIDTH, width - len(label) - len(last) - 2)))
                lines.append(Text.assemble((label, "dim"), (sparkline_text, "cyan"), f"  {last}"))
        return lines
