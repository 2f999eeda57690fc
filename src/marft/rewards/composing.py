"""From what the environment paid to what the recipe's terms make of it, each term kept apart for the metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from marft.rewards.terms import Earned, Term
from marft.types import Episode, Transition


def compose(episode: Episode, terms: Sequence[Term]) -> Episode:
    """The episode with composed rewards. Without terms, and where it could not be scored, it stays as it is.

    A term that raises, or gives no finite number, fails the episode: it is never a reward of 0.
    """
    if not terms or not episode.scored:
        return episode
    try:
        scores = [(term, list(term.score(episode))) for term in terms]
    except Exception as error:  # noqa: BLE001  somebody else's code; the reason is recorded
        return _failed(episode, f"a reward term raised {type(error).__name__}: {error}")
    transitions = list(episode.transitions)
    for place, transition in enumerate(transitions):
        transitions[place] = _composed(transition, [(term, earned[place]) for term, earned in scores])
        numbers = [transitions[place].reward, *transitions[place].agent_rewards.values()]
        if not all(map(math.isfinite, numbers)):
            return _failed(episode, f"a reward term gave {transitions[place].terms}, which is not finite")
    return replace(episode, transitions=tuple(transitions))


def _composed(transition: Transition, earned: Sequence[tuple[Term, Earned]]) -> Transition:
    team, own, parts = 0.0, dict[str, float](), dict[str, float]()
    for term, here in earned:
        share = term.weighed(here.team)
        team += share
        parts[term.name] = parts.get(term.name, 0.0) + share
        for agent, reward in here.agents.items():
            share = term.weighed(reward)
            own[agent] = own.get(agent, 0.0) + share
            parts[f"{term.name}/{agent}"] = parts.get(f"{term.name}/{agent}", 0.0) + share
    return replace(transition, reward=team, agent_rewards=own, terms=parts)


def _failed(episode: Episode, reason: str) -> Episode:
    return replace(episode, status="failed", error=reason)
