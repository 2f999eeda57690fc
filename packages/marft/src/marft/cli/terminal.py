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
from marft.cli.samples import sample
from marft.cli.sparks import Eta, sparkline
from marft.cli.steplines import AgentLines, team_line
from marft.common.metrics import named
from marft.common.observing import Observer
from marft.common.types import Episode
from marft.evaluation.transcripts import dropped

UNBOUNDED = 10_000  # columns of a file or a pipe
REASONS = 3  # maximum reasons for dropped episodes per step
CURVES = (("sft/loss", "reward"), ("sft/held_out_loss", "accuracy"))  # the first available metric of each pair
BAR, CURVE = 24, 48  # maximum widths in columns
STOPPING = "stopping after this step; Ctrl-C again to stop at once"


class Interruptible(Observer):
    """Callback that stops training after the current step on the first Ctrl-C; the second Ctrl-C ends the command."""

    done = 0  # steps done before this training
    _stop = False

    def __enter__(self) -> Self:
        self._handler = signal.signal(signal.SIGINT, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._handler)

    def began(self, done: int, steps: int) -> None:  # noqa: ARG002
        """Store the steps done before."""
        self.done = done

    def wants_stop(self) -> bool:
        """Return True after the first Ctrl-C."""
        return self._stop

    def _interrupted(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        self.note(STOPPING)


class Quiet(Interruptible):
    """Callback that prints only notes, guards, and new reasons for dropped episodes."""

    def __init__(self) -> None:
        self.console = wide_console()
        self._lost: list[Episode] = []
        self._known: set[str] = set()

    def episode(self, episode: Episode) -> None:
        """Collect an episode without a score."""
        if not episode.scored:
            self._lost.append(episode)

    def step(self, step: int, metrics: dict[str, float]) -> None:  # noqa: ARG002
        """Print reasons for dropped episodes, each reason once per run."""
        for reason, times in dropped(self._lost):
            if reason not in self._known:
                self._known.add(reason)
                self.console.print(Text(f"step {step}: dropped  {times} × {reason}", style="red"), soft_wrap=True)
        self._lost.clear()

    def guard(self, step: int, name: str, sentence: str) -> None:
        """Print a guard."""
        self.console.print(Text(f"step {step}: guard {name}: {sentence}", style="red"), soft_wrap=True)

    def note(self, text: str) -> None:
        """Print a note."""
        self.console.print(Text(text, style="yellow"), soft_wrap=True)


class Terminal(Interruptible):
    """Callback that prints every step, with a progress display on terminals."""

    def __init__(self, roles: Sequence[str], samples_every: int = 0, label: str = "training") -> None:
        """Create the display.

        Args:
            roles: roles of the team, one line each.
            samples_every: steps between sample episodes; 0: none.
            label: label of the progress bar.
        """
        self.roles, self.samples_every = roles, samples_every
        self._lines = AgentLines(roles)
        self._sample: Episode | None = None
        self._lost: list[Episode] = []
        self._guards: list[tuple[str, str]] = []
        self.console = wide_console()
        self.progress = Progress(label)

    def __enter__(self) -> Self:
        super().__enter__()
        self._live = Live(self.progress, console=self.console, transient=True, refresh_per_second=4)
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()
        super().__exit__()

    def began(self, done: int, steps: int) -> None:
        """Start the progress display."""
        super().began(done, steps)
        self.progress.began(done, steps)

    def episode(self, episode: Episode) -> None:
        """Count an episode, and keep it as sample or as dropped."""
        self.progress.played += 1
        if not episode.scored:
            self._lost.append(episode)
        elif self._sample is None:
            self._sample = episode

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Print the step's lines."""
        self.progress.step(step, metrics)
        width = self.console.width if self.console.is_terminal else UNBOUNDED
        number = f"step {step:4d}"
        said = team_line(metrics, width - len(number) - 2)
        self._print(Text.assemble((number, "bold"), f"  {said}"))
        for name, sentence in self._guards:
            self._print(Text(f"  {'guard ' + name:>12}  {sentence}", style="red"))
        self._guards.clear()
        for role in self.roles:
            self._print(Text(self._lines.of(role, metrics, width), style="dim"))
        for reason, times in dropped(self._lost)[:REASONS]:
            self._print(Text(f"  {'dropped':>12}  {times} × {reason}", style="red"))
        self._lost.clear()
        if self._sample and self.samples_every and step % self.samples_every == 0:
            for shown in sample(self._sample):
                self._print(shown)
        self._sample = None

    def guard(self, step: int, name: str, sentence: str) -> None:  # noqa: ARG002
        """Keep a guard for the step's lines."""
        self._guards.append((name, sentence))

    def note(self, text: str) -> None:
        """Print a note."""
        self._print(Text(text, style="yellow"))

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)


class Progress:
    """Progress display: bar, remaining time, and curves of the main metrics."""

    def __init__(self, label: str, now: Callable[[], float] = time.monotonic) -> None:
        self.played = 0  # episodes of the current step
        self._label, self._now = label, now
        self._done, self._steps = 0, 0
        self._eta = Eta()
        self._began = now()
        self._values: dict[str, list[float]] = {}

    def began(self, done: int, steps: int) -> None:
        """Set the finished and total steps."""
        self._done, self._steps = done, steps
        self._eta.tick(self._now())

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Record the end of a step."""
        self.played, self._done = 0, step
        self._eta.tick(self._now())
        for names in CURVES:
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
        now = self._now()
        head = Text(self._label)
        if not self._steps:
            return [head.append("  getting ready")]
        full, empty = ("━", "╺") if blocks else ("#", ".")
        room = max(0, min(BAR, width - 60))
        part = room * min(self._done, self._steps) // self._steps
        if room:
            head.append("  ").append(full * part, style="green").append(empty * (room - part), style="dim")
        head.append(f"  {self._done}/{self._steps}")
        head.append(f"  {self._eta.words(self._steps - self._done, now)}")
        if self.played:
            head.append(f"  {self.played} episodes", style="dim")
        return [head, *(self._curves(width) if blocks else [])]

    def _curves(self, width: int) -> list[Text]:
        lines = []
        for names in CURVES:
            name = next((name for name in names if len(self._values.get(name, ())) > 1), "")
            if name:
                metric, values = named(name), self._values[name]
                last = next((metric.shown(value) for value in reversed(values) if math.isfinite(value)), "")
                label = f"{metric.label:>14}  "
                curve = sparkline(values, max(8, min(CURVE, width - len(label) - len(last) - 2)))
                lines.append(Text.assemble((label, "dim"), (curve, "cyan"), f"  {last}"))
        return lines
