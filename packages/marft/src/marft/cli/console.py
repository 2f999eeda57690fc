"""Consoles that nothing which others wrote can command, and the table of evaluations."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from marft.common.texts import one_line, visible
from marft.evaluation.compare import between, number, passes_cells, percent

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


def evaluation_table(rows: Sequence[Mapping[str, Any]], targets: bool = False) -> Table:
    """Evaluations, one a row: accuracy where anything has one, and reward; what failed only where something did.

    Args:
        targets: each has a ``target``, which is shown.
    """
    table = Table(box=None, pad_edge=False)
    known = any(row["accuracy"] is not None for row in rows)
    unknown = known and any(row["unknown"] for row in rows)
    failed = any(row["failed"] for row in rows)
    teams = any(row.get("reorganized") for row in rows)
    columns = [
        *([("target", "left")] if targets else []),
        ("checkpoint", "left"), *([("as", "left")] if teams else []),
        ("mode", "left"), ("messages", "left"), ("tasks", "right"),
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
        team = [row.get("reorganized", {}).get("name", "trained")] if teams else []
        cells = [*named, row["checkpoint"], *team, row["mode"], messages, str(row["tasks"])]
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
    """Of evaluations with several attempts at a task, pass@k, pass^k and avg@k with their intervals, one a row.

    Args:
        targets: each has a ``target``, which is shown.
    """
    table = Table(box=None, pad_edge=False)
    for heading in [*(["target"] if targets else []), "checkpoint", "mode", "over attempts", "share", "95 % interval"]:
        table.add_column(heading, justify="right" if heading == "share" else "left", overflow="fold")
    for row in rows:
        named = [row["target"]] if targets else []
        for cells in passes_cells([row]):
            table.add_row(*(Text(one_line(str(cell))) for cell in [*named, *cells]))
    return table
