"""Safe consoles, immune to control characters in foreign text, and the table of evaluations."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from marft.common.texts import sanitize, single_line
from marft.evaluation.checkpoint_results import format_interval, format_number, format_passes, format_percent

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


def evaluation_table(rows: Sequence[Mapping[str, Any]], targets: bool = False) -> Table:
    """Return a table of evaluations, one per row, with accuracy if known and reward.

    Columns for failures and unknown success appear only if a value is not 0.

    Args:
        targets: each row has a ``target``, shown in the first column.
    """
    has_accuracy = any(row["accuracy"] is not None for row in rows)
    has_unknown = has_accuracy and any(row["unknown"] for row in rows)
    columns: list[tuple[bool, str, Literal["left", "right"], Callable[[Mapping[str, Any]], object]]] = [
        (targets, "target", "left", lambda row: row["target"]),
        (True, "checkpoint", "left", lambda row: row["checkpoint"]),
        (any(row.get("reorganized") for row in rows), "as", "left", _team_name),
        (True, "mode", "left", lambda row: row["mode"]),
        (True, "messages", "left", lambda row: "shuffled" if row["shuffled_messages"] else "own"),
        (True, "tasks", "right", lambda row: row["tasks"]),
        (has_accuracy, "accuracy", "right", lambda row: format_percent(row["accuracy"])),
        (has_accuracy, "95 % interval", "left", lambda row: format_interval(row["interval"], format_percent)),
        (has_unknown, "success unknown", "right", lambda row: row["unknown"]),
        (True, "reward", "right", lambda row: format_number(row["reward"])),
        (True, "95 % interval", "left", lambda row: format_interval(row["reward_interval"], format_number)),
        (any(row["failed"] for row in rows), "could not be scored", "right", lambda row: row["failed"]),
    ]
    shown_columns = [(heading, alignment, cell) for shown, heading, alignment, cell in columns if shown]
    table = Table(box=None, pad_edge=False)
    for heading, alignment, _ in shown_columns:
        no_wrap = " " not in heading  # words and numbers stay whole; other headings wrap without loss
        table.add_column(heading, justify=alignment, no_wrap=no_wrap, overflow="fold")
    for row in rows:
        table.add_row(*(Text(single_line(str(cell(row)))) for _, _, cell in shown_columns))
    return table


def _team_name(row: Mapping[str, Any]) -> object:
    return row.get("reorganized", {}).get("name", "trained")


def pass_at_k_table(rows: Sequence[Mapping[str, Any]], targets: bool = False) -> Table:
    """Return a table with pass@k, pass^k and avg@k and their intervals, for evaluations with several attempts per task.

    Args:
        targets: each row has a ``target``, shown in the first column.
    """
    table = Table(box=None, pad_edge=False)
    for heading in [*(["target"] if targets else []), "checkpoint", "mode", "over attempts", "share", "95 % interval"]:
        table.add_column(heading, justify="right" if heading == "share" else "left", overflow="fold")
    for row in rows:
        prefix = [row["target"]] if targets else []
        for cells in format_passes([row]):
            table.add_row(*(Text(single_line(str(cell))) for cell in [*prefix, *cells]))
    return table
