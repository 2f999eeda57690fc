"""Safe consoles, immune to control characters in foreign text, and the table of evaluations."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.text import Text

from marft.common.texts import sanitize
from marft.evaluation.checkpoint_results import format_interval, format_number, format_percent
from marft.evaluation.column_tables import ColumnTable
from marft.evaluation.metric_tables import column_headings

INTERVAL = "  95 % interval"  # label of the row with the interval of the row above
INTERRUPTED = 128 + signal.SIGINT  # exit status after Ctrl-C


class SanitizeHook(RenderHook):
    """Render hook that removes terminal control characters from text, except rich's own styles and cursor movements.

    Much of the output was written by models, tasks and environments.
    """

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Wrap each renderable for sanitized text."""
        return [_Sanitized(renderable) for renderable in renderables]


class _Sanitized:
    def __init__(self, renderable: ConsoleRenderable) -> None:
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.renderable, options):
            yield segment if segment.control else Segment(sanitize(segment.text), segment.style)


def add_sanitizer(console: Console) -> Console:
    """Add the guard to a console and return the console."""
    console.push_render_hook(SanitizeHook())
    return console


def wide_console() -> Console:
    """Return a safe console without markup, which neither wraps nor truncates text for files and pipes."""
    width = None if sys.stdout.isatty() else 1000
    return add_sanitizer(Console(highlight=False, markup=False, emoji=False, width=width))


def bold(text: str) -> Text:
    """Return the text in bold."""
    return Text(text, style="bold")


def evaluation_table(rows: Sequence[Mapping[str, Any]], targets: bool = False) -> ColumnTable:
    """Return a table with a column for each evaluation: tasks, accuracy if known, reward, and pass@k if known.

    Rows for failures and unknown success appear only if a value is not 0.

    Args:
        targets: each evaluation has a ``target``, shown in the heading.
    """
    has_accuracy = any(row["accuracy"] is not None for row in rows)
    has_unknown = has_accuracy and any(row["unknown"] for row in rows)
    lines: list[tuple[bool, str, Callable[[Mapping[str, Any]], object]]] = [
        (True, "tasks", lambda row: row["tasks"]),
        (any(row["failed"] for row in rows), "could not be scored", lambda row: row["failed"]),
        (has_unknown, "success unknown", lambda row: row["unknown"]),
        (has_accuracy, "accuracy", lambda row: format_percent(row["accuracy"])),
        (has_accuracy, INTERVAL, lambda row: format_interval(row["interval"], format_percent)),
        *_pass_lines(rows),
        (True, "reward", lambda row: format_number(row["reward"])),
        (
            any(row["reward_interval"] for row in rows),
            INTERVAL,
            lambda row: format_interval(row["reward_interval"], format_number),
        ),
    ]
    table_rows = [(Text(label), [str(cell(row)) for row in rows]) for shown, label, cell in lines if shown]
    return ColumnTable("", column_headings(rows, targets), table_rows)


def _pass_lines(
    rows: Sequence[Mapping[str, Any]],
) -> list[tuple[bool, str, Callable[[Mapping[str, Any]], object]]]:
    """Return the lines of pass@k, pass^k and avg@k, for evaluations with several attempts at each task."""
    lines = list[tuple[bool, str, Callable[[Mapping[str, Any]], object]]]()
    for name in dict.fromkeys(name for row in rows for name in row.get("passes", {})):

        def share(row: Mapping[str, Any], name: str = name) -> str:
            return format_percent(row.get("passes", {}).get(name, (None, None))[0])

        def interval(row: Mapping[str, Any], name: str = name) -> str:
            return format_interval(row.get("passes", {}).get(name, (None, None))[1], format_percent)

        lines += [(True, name, share), (True, INTERVAL, interval)]
    return lines
