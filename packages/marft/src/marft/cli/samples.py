"""One episode in a few lines: what scrolls by while a run trains."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from marft.cli.outcomes import SUCCESS
from marft.common.texts import cut, one_line
from marft.common.types import Episode

TASK_SHOWN, SAID_SHOWN = 160, 400  # characters


def sample(episode: Episode) -> Iterator[Text]:
    """The task, what each agent said in the order that they were asked, and what that earned."""
    yield Text.assemble(("  sample  ", "bold"), cut(one_line(episode.task.prompt), TASK_SHOWN))
    for action in episode.actions:
        said = cut(one_line(action.text), SAID_SHOWN)
        yield Text.assemble((f"  {one_line(action.agent):>12}  ", "cyan"), said)
    yield Text.assemble(f"  {'reward':>12}  {episode.total_reward:g} ", SUCCESS[episode.success])
