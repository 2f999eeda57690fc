"""Episode outcome for the terminal: status, rewards, terms and errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from marft.common.texts import sanitize, single_line
from marft.common.types import Episode

SUCCESS_LABELS = {True: ("solved", "green"), False: ("not solved", "red"), None: ("success unknown", "dim")}


def render_outcome(episode: Episode) -> Iterator[RenderableType]:
    """Yield a line with the rewards, a table of reward terms, and the error."""
    if episode.is_scored and not episode.transitions:
        yield Text(f"{episode.status}: not graded", style="dim")
        return
    agent_totals: dict[str, float] = {}
    for transition in episode.transitions:
        for role, reward in transition.agent_rewards.items():
            agent_totals[role] = agent_totals.get(role, 0.0) + reward
    rewards = "".join(f", {single_line(role)} {reward:g}" for role, reward in agent_totals.items())
    if episode.is_scored:
        text = f"{episode.status}: reward {episode.total_reward:g}{rewards} "
        yield Text.assemble(text, SUCCESS_LABELS[episode.success])
    else:
        yield Text(f"{episode.status}: not scored")
    terms = sum_terms(episode)
    if terms:
        yield terms_table(terms)
    if episode.error:
        yield Text(sanitize(episode.error), style="red")


def sum_terms(episode: Episode) -> dict[str, dict[str, float]]:
    """Return weighted totals over the episode for each reward term: for the team (``""``) and by agent."""
    totals: dict[str, dict[str, float]] = {}
    for transition in episode.transitions:
        for name, share in transition.terms.items():
            term, _, agent = name.partition("/")
            term_totals = totals.setdefault(term, {})
            term_totals[agent] = term_totals.get(agent, 0.0) + share
    return totals


def terms_table(terms: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table with one reward term per row, and a column per recipient."""
    table = Table(box=None, pad_edge=False)
    recipients = ["", *dict.fromkeys(agent for shares in terms.values() for agent in shares if agent)]
    for heading in ("reward term", *(agent or "team" for agent in recipients)):
        table.add_column(Text(single_line(heading)), justify="left" if heading == "reward term" else "right")
    for term, shares in terms.items():
        cells = (f"{shares[agent]:+g}" if agent in shares else "" for agent in recipients)
        table.add_row(Text(single_line(term)), *map(Text, cells))
    return table
