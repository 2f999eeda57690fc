"""Counterfactual part: each action is resampled, while independent actions stay as recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marft.common.types import Episode
from marft_lab.team_worth.bench import Bench
from marft_lab.team_worth.contributions import Contribution, Share, contributions, shares

PART = "counterfactual"


@dataclass(frozen=True, slots=True)
class Resampled:
    """Result of the counterfactual part.

    Args:
        shares: contribution of each agent.
        episodes: episodes of the team with the contributions of their actions, ordered by largest contribution.
        forks: number of resampled episodes.
        failed: number of resampled episodes without a score.
    """

    shares: Sequence[Share]
    episodes: Sequence[tuple[Episode, Sequence[Contribution]]]
    forks: int
    failed: int


def counterfactual(bench: Bench) -> Resampled:
    """Measure the contribution of each action in the team's first attempts."""
    firsts = [episode for episode in bench.episodes if episode.scored and episode.sample == 0]
    bench.expect(PART, sum(len(episode.actions) for episode in firsts) * bench.options.resamples)
    forks = bench.player.forks(bench.arm, firsts, bench.options.resamples)
    by_origin: dict[str, list[Episode]] = {}
    for fork in forks:
        if fork.fork:
            by_origin.setdefault(fork.fork.origin, []).append(fork)
    found = {episode.task.id: contributions(episode, by_origin.get(episode.name, [])) for episode in firsts}
    failed = [fork for fork in forks if not fork.scored]
    if failed:
        bench.note(PART, f"{len(failed)} of {len(forks)} could not be scored; the first: {failed[0].error}")
    for role in bench.roles:
        if role not in bench.asked:
            bench.note(PART, f"{role} was never asked, and contributed nothing")
    shown = sorted(firsts, key=lambda episode: -_largest(found[episode.task.id]))
    return Resampled(
        shares(found, bench.roles), [(episode, found[episode.task.id]) for episode in shown], len(forks), len(failed)
    )


def _largest(found: Sequence[Contribution]) -> float:
    return max((abs(one.contribution) for one in found), default=0.0)


def as_json(episodes: Sequence[tuple[Episode, Sequence[Contribution]]]) -> list[Mapping[str, object]]:
    """Return the contributions as JSON data, by episode."""
    return [
        {
            "task": episode.task.id,
            "reward": episode.total_reward,
            "actions": [
                {
                    "action": one.action, "agent": one.agent, "resampled": list(one.resampled),
                    "contribution": one.contribution, "variance": one.variance, "own": one.own,
                }
                for one in found
            ],
        }
        for episode, found in episodes
    ]  # fmt: skip
