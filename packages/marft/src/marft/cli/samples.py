"""Compact view of one episode, shown during training."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from marft.cli.outcomes import SUCCESS_LABELS
from marft.common.texts import single_line, truncate
from marft.common.types import Episode

MAX_TASK_LENGTH, MAX_REPLY_LENGTH = 160, 400  # maximum lengths in characters


def render_sample(episode: Episode) -> Iterator[Text]:
    """Yield the task, each agent's text in order of action, and the reward."""
    yield Text.assemble(("  sample  ", "bold"), truncate(single_line(episode.task.prompt), MAX_TASK_LENGTH))
    for action in episode.actions:
        text = truncate(single_line(action.text), MAX_REPLY_LENGTH)
        yield Text.assemble((f"  {single_line(action.agent):>12}  ", "cyan"), text)
    yield Text.assemble(f"  {'reward':>12}  {episode.total_reward:g} ", SUCCESS_LABELS[episode.success])
