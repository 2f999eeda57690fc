"""``marft show --follow``: show episodes as a run records them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from rich.text import Text

from marft.cli.console import INTERRUPTED, wide_console
from marft.cli.errors import set_run_folder
from marft.cli.show import check_agent, print_dropped, render_transcript
from marft.evaluation.prompt_decoder import PromptDecoder
from marft.evaluation.transcripts import Order, read_task_episodes, sort_episodes
from marft.runs.run_folder import RunFolder, parse_step

POLL_SECONDS = 0.5  # seconds between two scans of the folder


def follow_run(path: Path, step: int | None, agent: str, task: str, sort_orders: Sequence[str], count: int) -> None:
    """Show episodes from the last recorded step on, until training ends.

    Raises:
        ValueError: the run or agent does not exist, or an option excludes ``--follow``.
        SystemExit: Ctrl-C.
    """
    if step is not None or task or len(sort_orders) > 1:
        raise ValueError("--follow shows every step as it comes; it goes with --agent, --count, and one of --worst, …")
    order = cast("Order", sort_orders[0] if sort_orders else "")
    folder, console = RunFolder.open(path), wide_console()
    set_run_folder(folder.path)
    recorded = PromptDecoder(folder.config)
    try:
        for file in _new_files(folder):
            episodes = read_task_episodes(file, "")
            check_agent(agent, episodes)
            console.rule(Text(f"step {parse_step(file)}"), align="left")
            for episode in sort_episodes(episodes, order)[:count]:
                for item in render_transcript(episode, agent, recorded):
                    console.print(item)
                console.print("")
            print_dropped(console, episodes)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    console.print(f"nobody trains {folder.path} now")


def _new_files(folder: RunFolder) -> Iterator[Path]:
    """Yield new episode files, beginning with the last existing file."""
    last = parse_step(steps[-1]) - 1 if (steps := folder.recorded_steps()) else 0
    while True:
        running = folder.is_in_use()  # checked first, so that files recorded just before the end are still shown
        for file in folder.recorded_steps():
            if parse_step(file) > last:
                last = parse_step(file)
                yield file
        if not running:
            return
        time.sleep(POLL_SECONDS)
