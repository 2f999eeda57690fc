"""Safe consoles, immune to control characters in foreign text, and the table of evaluations."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

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
    table = Table(box=None, pad_edge=False)
    has_accuracy = any(row["accuracy"] is not None for row in rows)
    has_unknown = has_accuracy and any(row["unknown"] for row in rows)
    has_failed = any(row["failed"] for row in rows)
    show_team = any(row.get("reorganized") for row in rows)
    columns = [
        *([("target", "left")] if targets else []),
        ("checkpoint", "left"),
        *([("as", "left")] if show_team else []),
        ("mode", "left"),
        ("messages", "left"),
        ("tasks", "right"),
        *([("accuracy", "right"), ("95 % interval", "left")] if has_accuracy else []),
        *([("success unknown", "right")] if has_unknown else []),
        ("reward", "right"),
        ("95 % interval", "left"),
        *([("could not be scored", "right")] if has_failed else []),
    ]
    for heading, alignment in columns:
        no_wrap = " " not in heading  # words and numbers stay whole; other headings wrap without loss
        right = alignment == "right"
        table.add_column(heading, justify="right" if right else "left", no_wrap=no_wrap, overflow="fold")
    for row in rows:
        messages = "shuffled" if row["shuffled_messages"] else "own"
        prefix = [row["target"]] if targets else []
        team = [row.get("reorganized", {}).get("name", "trained")] if show_team else []
        cells = [*prefix, row["checkpoint"], *team, row["mode"], messages, str(row["tasks"])]
        if has_accuracy:
            cells += [format_percent(row["accuracy"]), format_interval(row["interval"], format_percent)]
        if has_unknown:
            cells.append(str(row["unknown"]))
        cells += [format_number(row["reward"]), format_interval(row["reward_interval"], format_number)]
        if has_failed:
            cells.append(str(row["failed"]))
        table.add_row(*(Text(single_line(str(cell))) for cell in cells))
    return table


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
