"""Episode outcome for the terminal: status, rewards, terms and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from marft.common.texts import one_line, visible
from marft.common.types import Episode

SUCCESS = {True: ("solved", "green"), False: ("not solved", "red"), None: ("success unknown", "dim")}


def outcome_of(episode: Episode) -> Iterator[RenderableType]:
    """Yield a line with the rewards, a table of reward terms, and the error."""
    if episode.scored and not episode.transitions:
        yield Text(f"{episode.status}: not graded", style="dim")
        return
    own: dict[str, float] = {}
    for transition in episode.transitions:
        for role, reward in transition.agent_rewards.items():
            own[role] = own.get(role, 0.0) + reward
    rewards = "".join(f", {one_line(role)} {reward:g}" for role, reward in own.items())
    if episode.scored:
        said = f"{episode.status}: reward {episode.total_reward:g}{rewards} "
        yield Text.assemble(said, SUCCESS[episode.success])
    else:
        yield Text(f"{episode.status}: not scored")
    terms = terms_of(episode)
    if terms:
        yield terms_table(terms)
    if episode.error:
        yield Text(visible(episode.error), style="red")


def terms_of(episode: Episode) -> dict[str, dict[str, float]]:
    """Return weighted totals over the episode for each reward term: for the team (``""``) and by agent."""
    totals: dict[str, dict[str, float]] = {}
    for transition in episode.transitions:
        for name, share in transition.terms.items():
            term, _, agent = name.partition("/")
            mine = totals.setdefault(term, {})
            mine[agent] = mine.get(agent, 0.0) + share
    return totals


def terms_table(terms: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table with one reward term per row, and a column per recipient."""
    table = Table(box=None, pad_edge=False)
    who = ["", *dict.fromkeys(agent for shares in terms.values() for agent in shares if agent)]
    for heading in ("reward term", *(agent or "team" for agent in who)):
        table.add_column(Text(one_line(heading)), justify="left" if heading == "reward term" else "right")
    for term, shares in terms.items():
        cells = (f"{shares[agent]:+g}" if agent in shares else "" for agent in who)
        table.add_row(Text(one_line(term)), *map(Text, cells))
    return table
