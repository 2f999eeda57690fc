"""Counterfactual part: each action is resampled, while independent actions stay as recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marft.common.types import Episode
from marft_lab.team_evaluation.context import ComparisonContext
from marft_lab.team_evaluation.contributions import (
    ActionContribution,
    AgentContribution,
    agent_contributions,
    compute_contributions,
)

PART = "counterfactual"


@dataclass(frozen=True, slots=True)
class CounterfactualResult:
    """Result of the counterfactual part.

    Args:
        shares: contribution of each agent.
        episodes: episodes of the team with the contributions of their actions, ordered by largest contribution.
        forks: number of resampled episodes.
        failed: number of resampled episodes without a score.
    """

    shares: Sequence[AgentContribution]
    episodes: Sequence[tuple[Episode, Sequence[ActionContribution]]]
    forks: int
    failed: int


def run_counterfactual(context: ComparisonContext) -> CounterfactualResult:
    """Measure the contribution of each action in the team's first attempts."""
    first_episodes = [episode for episode in context.episodes if episode.is_scored and episode.sample == 0]
    context.expect(PART, sum(len(episode.actions) for episode in first_episodes) * context.options.resamples)
    forks = context.player.play_forks(context.variant, first_episodes, context.options.resamples)
    by_origin: dict[str, list[Episode]] = {}
    for fork in forks:
        if fork.fork:
            by_origin.setdefault(fork.fork.origin, []).append(fork)
    by_task = {
        episode.task.id: compute_contributions(episode, by_origin.get(episode.name, [])) for episode in first_episodes
    }
    failed = [fork for fork in forks if not fork.is_scored]
    if failed:
        context.note(PART, f"{len(failed)} of {len(forks)} could not be scored; the first: {failed[0].error}")
    for role in context.roles:
        if role not in context.acting_roles:
            context.note(PART, f"{role} was never asked, and contributed nothing")
    ranked = sorted(first_episodes, key=lambda episode: -_max_contribution(by_task[episode.task.id]))
    return CounterfactualResult(
        agent_contributions(by_task, context.roles),
        [(episode, by_task[episode.task.id]) for episode in ranked],
        len(forks),
        len(failed),
    )


def _max_contribution(contributions: Sequence[ActionContribution]) -> float:
    return max((abs(item.contribution) for item in contributions), default=0.0)


def as_json(episodes: Sequence[tuple[Episode, Sequence[ActionContribution]]]) -> list[Mapping[str, object]]:
    """Return the contributions as JSON data, by episode."""
    return [
        {
            "task": episode.task.id,
            "reward": episode.total_reward,
            "actions": [
                {
                    "action": item.action,
                    "agent": item.agent,
                    "resampled": list(item.resampled),
                    "contribution": item.contribution,
                    "variance": item.variance,
                    "own": item.own,
                }
                for item in contributions
            ],
        }
        for episode, contributions in episodes
    ]
