"""Compact view of one episode, shown during training."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from marft.cli.outcomes import SUCCESS
from marft.common.texts import cut, one_line
from marft.common.types import Episode

TASK_SHOWN, SAID_SHOWN = 160, 400  # maximum lengths in characters


def sample(episode: Episode) -> Iterator[Text]:
    """Yield the task, each agent's text in order of action, and the reward."""
    yield Text.assemble(("  sample  ", "bold"), cut(one_line(episode.task.prompt), TASK_SHOWN))
    for action in episode.actions:
        said = cut(one_line(action.text), SAID_SHOWN)
        yield Text.assemble((f"  {one_line(action.agent):>12}  ", "cyan"), said)
    yield Text.assemble(f"  {'reward':>12}  {episode.total_reward:g} ", SUCCESS[episode.success])
