"""``marft show --follow``: show episodes as a run records them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from rich.text import Text

from marft.cli.console import INTERRUPTED, wide_console
from marft.cli.errors import beside
from marft.cli.show import know, say_dropped, transcript
from marft.evaluation.prompts import Recorded
from marft.evaluation.transcripts import Order, ordered, read_of
from marft.runs.folder import RunFolder, step_of

LOOKED_AT = 0.5  # seconds between two scans of the folder


def follow(path: Path, step: int | None, agent: str, task: str, orders: Sequence[str], count: int) -> None:
    """Show episodes from the last recorded step on, until training ends.

    Raises:
        ValueError: the run or agent does not exist, or an option excludes ``--follow``.
        SystemExit: Ctrl-C.
    """
    if step is not None or task or len(orders) > 1:
        raise ValueError("--follow shows every step as it comes; it goes with --agent, --count, and one of --worst, …")
    order = cast("Order", orders[0] if orders else "")
    folder, console = RunFolder.open(path), wide_console()
    beside(folder.path)
    recorded = Recorded(folder.config)
    try:
        for file in _recorded(folder):
            episodes = read_of(file, "")
            know(agent, episodes)
            console.rule(Text(f"step {step_of(file)}"), align="left")
            for episode in ordered(episodes, order)[:count]:
                for shown in transcript(episode, agent, recorded):
                    console.print(shown)
                console.print("")
            say_dropped(console, episodes)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    console.print(f"nobody trains {folder.path} now")


def _recorded(folder: RunFolder) -> Iterator[Path]:
    """Yield new episode files, beginning with the last existing file."""
    last = step_of(steps[-1]) - 1 if (steps := folder.recorded_steps()) else 0
    while True:
        working = folder.is_at_work()  # checked first, so that files recorded just before the end are still shown
        for file in folder.recorded_steps():
            if step_of(file) > last:
                last = step_of(file)
                yield file
        if not working:
            return
        time.sleep(LOOKED_AT)
