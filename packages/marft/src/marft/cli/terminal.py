"""Terminal display of a run: one line per step and agent, with progress below."""

from __future__ import annotations

import math
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import FrameType
from typing import NamedTuple, Self

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from marft.cli.console import wide_console
from marft.cli.show import SUCCESS_LABELS
from marft.common.callbacks import Callback
from marft.common.metrics import catalog_metric
from marft.common.texts import single_line, truncate
from marft.common.types import Episode
from marft.evaluation.guards.history import ROLLBACK_KEY
from marft.evaluation.transcripts import count_failure_reasons

FILE_WIDTH = 10_000  # columns of a file or a pipe
MAX_REASONS = 3  # maximum reasons for dropped episodes per step
CURVE_METRICS = (("sft/loss", "reward"), ("sft/held_out_loss", "accuracy"))  # the first available metric of each pair
MAX_BAR_WIDTH, MAX_CURVE_WIDTH = 24, 48  # maximum widths in columns
STOP_MESSAGE = "stopping after this step; Ctrl-C again to stop at once"


class Column(NamedTuple):
    """One column of the step table: a metric, and its heading."""

    metric: str
    heading: str


TRAINING_COLUMNS = (
    Column("reward", "reward"),
    Column("accuracy", "accuracy"),
    Column("policy_loss", "policy loss"),
    Column("zero_advantage_fraction", "zero adv."),
    Column("tokens_per_second", "tokens/s"),
    Column("seconds", "seconds"),
)  # 74 columns wide, with the step
WIDE_COLUMNS = (Column("entropy", "entropy"), Column("kl", "KL"))  # shown if the terminal has 100 columns
WIDE = 100  # columns
SFT_COLUMNS = (Column("sft/loss", "loss"), Column("sft/held_out_loss", "held-out loss"), Column("seconds", "seconds"))
MIN_COLUMN_WIDTH, COLUMN_GAP = 8, 2
MISSING = "–"  # cell without a value
MIN_EXPONENT, MAX_EXPONENT = -4, 7  # other numbers are written with an exponent
HEADING_INTERVAL = 25  # steps between two lines of headings
TRAINING_LEGEND = "zero adv.: actions without a learning signal; --verbose shows agents and more"
EVENT_METRICS = (
    "validation_accuracy", "validation_reward", "success_unknown", "kl_stops", "episodes_dropped", "workers_lost",
    "tasks_excluded", "ranks_lost", "engine_restarts", "truncated_tokens", "skipped_updates", "reverted_steps",
    "remote_cost", "judge/cost",
)  # fmt: skip
VERBOSE_METRICS = (
    "reward_std",
    "critic/loss",
    "critic/explained_variance",
    "gradient_norm",
    "team_kl",
    "accepted_fraction",
    "episodes_per_second",
    "async/learner_idle_seconds",
)
AGENT_METRICS = (
    "sft/loss",
    "sft/held_out_loss",
    "action_length",
    "entropy",
    "kl",
    "clip_fraction",
    "gradient_share",
    "truncation_rate",
    "policy_lag",
)
MAX_LINE_WIDTH = 100  # maximum width of an agent's line, in columns
ROLE_WIDTHS = (12, 16)  # minimum and maximum width of a role, in columns
GUARD_PREFIX = "guards/"

BLOCKS = "▁▂▃▄▅▆▇█"
ETA_WINDOW = 20  # steps for the estimate of a step's duration

MAX_TASK_LENGTH, MAX_REPLY_LENGTH = 160, 400  # maximum lengths in characters


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
    """Callback that prints one line per step, with a progress display on terminals."""

    def __init__(
        self, roles: Sequence[str], sample_interval: int = 0, label: str = "training", verbose: bool = False
    ) -> None:
        """Create the display.

        Args:
            roles: roles of the team, one line each if ``verbose``.
            sample_interval: steps between sample episodes; 0: none.
            label: label of the progress bar.
            verbose: print more metrics of each step, and a line per agent.
        """
        self.roles, self.sample_interval, self.verbose = roles, sample_interval, verbose
        self._agent_lines = AgentLineFormatter(roles)
        self._table = StepTable()
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
        self._table.steps = steps
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
        explained = {GUARD_PREFIX + name for name, _ in self._guards}  # a sentence below says more
        unexplained = {name: value for name, value in metrics.items() if name not in explained}
        for line in self._table.lines(step, unexplained, width, self.verbose):
            self._print(line)
        for name, sentence in self._guards:
            self._print(Text(f"  {'guard ' + name:>12}  {sentence}", style="red"))
        self._guards.clear()
        for role in self.roles if self.verbose else ():
            self._print(Text(self._agent_lines.format_line(role, metrics, width), style="dim"))
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


class StepTable:
    """Table with one row per step and fixed columns. Legend and headings come before the first row."""

    def __init__(self) -> None:
        self.steps = 0  # last step of the run; 0: unknown
        self._columns: tuple[Column, ...] = ()
        self._rows = 0

    def lines(self, step: int, metrics: Mapping[str, float], width: int, verbose: bool = False) -> Iterator[Text]:
        """Yield the step's row, after headings where they are due, and its events.

        Args:
            step: step number, counted from 1.
            metrics: metrics of the step.
            width: columns of the terminal.
            verbose: also yield a line with further metrics.
        """
        if not self._columns:
            wide = WIDE_COLUMNS if width >= WIDE else ()
            self._columns = (
                SFT_COLUMNS if "sft/loss" in metrics else (*TRAINING_COLUMNS[:-2], *wide, *TRAINING_COLUMNS[-2:])
            )
            if self._columns is not SFT_COLUMNS and not verbose:
                yield Text(TRAINING_LEGEND, style="dim")
        first = f"step {step}/{self.steps}" if self.steps else f"step {step}"
        first_width = len("step /") + 2 * len(str(self.steps or step))
        if self._rows % HEADING_INTERVAL == 0:
            headings = [_align(column.heading, column) for column in self._columns]
            yield Text(" " * first_width + "".join(headings), style="dim")
        self._rows += 1
        cells = [_align(_format_cell(column.metric, metrics), column) for column in self._columns]
        yield Text.assemble((f"{first:<{first_width}}", "bold"), "".join(cells))
        raised = [f"guard {name.removeprefix(GUARD_PREFIX)}" for name in metrics if _is_raised(name)]
        events = "  ".join(filter(None, [format_line(metrics, EVENT_METRICS), *raised]))
        if events:
            yield Text(f"  {events}", style="yellow")
        if verbose and (further := format_line(metrics, VERBOSE_METRICS)):
            yield Text(f"  {further}", style="dim")


def _align(text: str, column: Column) -> str:
    return " " * COLUMN_GAP + f"{text:>{max(MIN_COLUMN_WIDTH, len(column.heading))}}"


def _format_cell(metric: str, metrics: Mapping[str, float]) -> str:
    value = metrics.get(metric, math.nan)
    if metric == "zero_advantage_fraction" and not math.isnan(value):
        return f"{math.floor(100 * value):d} %"  # 100 % only if no action has a signal
    return two_digits(value)


def two_digits(value: float) -> str:
    """Return a number with two significant digits at least; whole numbers keep their digits.

    >>> [two_digits(value) for value in (0.30, -0.000123, 1.0, 44.4, 2802.4, 0.0, 0.00000012, math.nan)]
    ['0.30', '-0.00012', '1.0', '44', '2802', '0', '1.2e-07', '–']
    """
    if math.isnan(value):
        return MISSING
    if value == 0 or math.isinf(value):
        return f"{value + 0.0:g}"  # 0 instead of -0
    exponent = int(f"{value:.1e}".partition("e")[2])
    plain = MIN_EXPONENT <= exponent < MAX_EXPONENT
    return f"{value:.{max(0, 1 - exponent)}f}" if plain else f"{value:.1e}"


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


def format_line(metrics: Mapping[str, float], names: Sequence[str], prefix: str = "") -> str:
    """Return the informative metrics in one line: ``reward 0.64  accuracy 0.64 …``.

    Args:
        prefix: prefix of the metrics' names: ``agents/<role>/``.
    """
    return "  ".join(format_metric(metrics, name, prefix) for name in names if format_metric(metrics, name, prefix))


def format_metric(metrics: Mapping[str, float], name: str, prefix: str = "") -> str:
    """Return one metric as text, ``accuracy 0.64``; "" if missing or uninformative."""
    metric, value = catalog_metric(name), metrics.get(f"{prefix}{name}", math.nan)
    if math.isnan(value) or (value == 0 and metric.hide_zero):
        return ""
    text = metric.format_value(value)
    return {
        "reward_std": f"±{text}",
        "async/learner_idle_seconds": f"{metric.label} {text} s",
        "seconds": f"{text} s",
    }.get(name, f"{metric.label} {text}")


class AgentLineFormatter:
    """One line per agent, aligned across steps, with a maximum width of ``MAX_LINE_WIDTH`` columns."""

    def __init__(self, roles: Sequence[str]) -> None:
        self._roles = {role: _shorten(single_line(role)) for role in roles}
        self._role_width = max([ROLE_WIDTHS[0], *map(len, self._roles.values())])
        self._widths: dict[str, int] = {}

    def format_line(self, role: str, metrics: Mapping[str, float], width: int) -> str:
        """Return one agent's line."""
        cells = []
        for name in AGENT_METRICS:
            cell = format_metric(metrics, name, f"agents/{role}/")
            if cell and not catalog_metric(name).hide_zero:
                label, _, value = cell.rpartition(" ")
                self._widths[name] = max(self._widths.get(name, 0), len(value))
                cell = f"{label} {value:>{self._widths[name]}}"
            if cell:
                cells.append(cell)
        text = f"  {self._roles.get(role, role):>{self._role_width}}"
        for cell in cells:
            if len(text) + 2 + len(cell) > min(width, MAX_LINE_WIDTH):
                break
            text += f"  {cell}"
        return text


def _shorten(role: str) -> str:
    return role if len(role) <= ROLE_WIDTHS[1] else f"{role[: ROLE_WIDTHS[1] - 1]}…"


def _is_raised(name: str) -> bool:
    return name.startswith(GUARD_PREFIX) and name != ROLLBACK_KEY


def sparkline(values: Sequence[float], width: int) -> str:
    """Return a curve with at most ``width`` characters.

    Each character is the mean of a range of values, and a space marks a range without finite values.

    >>> sparkline([0.0, 1.0, 0.5, math.nan, 1.0], 10)
    '▁█▅ █'
    """
    columns = min(width, len(values))
    edges = [number * len(values) // columns for number in range(columns + 1)] if columns > 0 else []
    means = [_mean(values[first:last]) for first, last in pairwise(edges)]
    finite = [value for value in means if not math.isnan(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    return "".join(_block(value, low, high) for value in means)


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _block(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return " "
    return BLOCKS[round((value / 2 - low / 2) / (high / 2 - low / 2) * 7) if high > low else 3]  # halves: no overflow


class TimeEstimate:
    """Estimate for the remaining time, from the mean over the last ``ETA_WINDOW`` steps, pauses included."""

    def __init__(self) -> None:
        self._end_times: deque[float] = deque(maxlen=ETA_WINDOW + 1)

    def update(self, timestamp: float) -> None:
        """Record the start, or the end of a step.

        Args:
            timestamp: seconds on any monotonic clock.
        """
        self._end_times.append(timestamp)

    def remaining_seconds(self, steps_left: int, timestamp: float) -> float:
        """Return the estimated seconds until ``steps_left`` more steps end; NaN before the first step ends."""
        steps = len(self._end_times) - 1
        if steps < 1:
            return math.nan
        if not steps_left:
            return 0.0
        step_seconds = (self._end_times[-1] - self._end_times[0]) / steps
        return max(0.0, steps_left * step_seconds - min(timestamp - self._end_times[-1], step_seconds))

    def format(self, steps_left: int, timestamp: float) -> str:
        """Return the estimate as text.

        >>> eta = TimeEstimate()
        >>> eta.update(0.0); eta.format(9, 1.0)
        'first step'
        >>> eta.update(60.0); eta.format(9, 60.0)
        '~9:00 left'
        """
        seconds = self.remaining_seconds(steps_left, timestamp)
        return "first step" if math.isnan(seconds) else f"~{format_duration(seconds)} left"


def format_duration(seconds: float) -> str:
    """Return a duration in seconds as ``m:ss`` or ``h:mm:ss``.

    >>> format_duration(59.6), format_duration(3600), format_duration(200_000)
    ('1:00', '1:00:00', '55:33:20')
    """
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"


def render_sample(episode: Episode) -> Iterator[Text]:
    """Yield the task, each agent's text in order of action, and the reward."""
    yield Text.assemble(("  sample  ", "bold"), truncate(single_line(episode.task.prompt), MAX_TASK_LENGTH))
    for action in episode.actions:
        text = truncate(single_line(action.text), MAX_REPLY_LENGTH)
        yield Text.assemble((f"  {single_line(action.agent):>12}  ", "cyan"), text)
    yield Text.assemble(f"  {'reward':>12}  {episode.total_reward:g} ", SUCCESS_LABELS[episode.success])
