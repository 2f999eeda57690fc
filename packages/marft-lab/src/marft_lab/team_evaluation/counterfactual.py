"""Counterfactual part: the contribution of each agent; actions are resampled, independent actions stay as recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, variance

from marft.common.types import Action, Episode
from marft.evaluation.ratios import Ratio
from marft.rollout.fork_plans import find_dependents
from marft_lab.team_evaluation.context import ComparisonContext
from marft_lab.team_evaluation.scores import MetricValue, summarize_scores

PART = "counterfactual"


@dataclass(frozen=True, slots=True)
class ActionContribution:
    """Contribution of an action, with the rewards of its resampled episodes.

    ``contribution`` is ``R − mean_j R_j``. ``variance`` is the unbiased variance of ``R, R_1, …, R_k``, all sampled
    from the state before the action. It measures the effect of the action and all later actions on the reward. ``own``
    is the effect of the action itself, by the law of total variance: ``variance`` minus the variance of the next
    action. The next action's resample must include everything after this action except this action. Without such an
    action, ``own`` is None. For an action without later actions, ``own`` is ``variance``.
    """

    action: str
    agent: str
    reward: float
    resampled: Sequence[float]
    own: float | None = None

    @property
    def contribution(self) -> float:
        """Reward minus the mean reward of the resamples."""
        return self.reward - fmean(self.resampled)

    @property
    def variance(self) -> float:
        """Unbiased variance of the reward over the episode and its resamples."""
        return variance([self.reward, *self.resampled])


@dataclass(frozen=True, slots=True)
class AgentContribution:
    """An agent's mean contribution per action.

    The contribution averages zero, up to noise: an action is as good as other samples of its policy. The variance shows
    the effect of the action on the reward.
    """

    agent: str
    actions: int
    contribution: MetricValue
    variance: MetricValue
    own: MetricValue | None


def compute_contributions(episode: Episode, forks: Iterable[Episode]) -> list[ActionContribution]:
    """Return the contributions of an episode's actions, in order; actions without a scored fork are omitted.

    Args:
        episode: episode.
        forks: episodes with a resampled action of this episode.
    """
    rewards: dict[str, list[float]] = {}
    for fork in forks:
        if fork.fork and fork.fork.origin == episode.name and fork.is_scored:
            rewards.setdefault(fork.fork.at, []).append(fork.total_reward)
    by_action = {
        action.id: ActionContribution(action.id, action.agent, episode.total_reward, rewards[action.id])
        for action in episode.actions
        if action.id in rewards
    }
    affected = {action.id: resampled_actions(episode.actions, action) for action in episode.actions}
    return [_add_own_variance(item, by_action, affected) for item in by_action.values()]


def resampled_actions(actions: Sequence[Action], action: Action) -> frozenset[str]:
    """Return the ids of the actions affected by a resample: the action, its dependents, and all later steps."""
    later = {candidate.id for candidate in actions if candidate.step > action.step}
    return frozenset(later | find_dependents(actions, action))


def _add_own_variance(
    item: ActionContribution, by_action: Mapping[str, ActionContribution], affected: Mapping[str, frozenset[str]]
) -> ActionContribution:
    later = affected[item.action] - {item.action}
    if not later:
        return replace(item, own=item.variance)
    same = next((by_action[name] for name in later if name in by_action and affected[name] == later), None)
    return item if same is None else replace(item, own=item.variance - same.variance)


def agent_contributions(
    episodes: Mapping[str, Sequence[ActionContribution]], roles: Sequence[str]
) -> list[AgentContribution]:
    """Return the contribution of each agent, with intervals over tasks.

    Args:
        episodes: contributions in one episode per task.
        roles: roles of the team.
    """
    results = []
    for role in roles:
        by_task = {task: [item for item in items if item.agent == role] for task, items in episodes.items()}
        contribution = _mean_over_tasks(by_task, lambda item: item.contribution)
        spread = _mean_over_tasks(by_task, lambda item: item.variance)
        if contribution is not None and spread is not None:
            own = _mean_over_tasks(by_task, lambda item: item.own)
            results.append(AgentContribution(role, sum(map(len, by_task.values())), contribution, spread, own))
    return results


def _mean_over_tasks(
    by_task: Mapping[str, Sequence[ActionContribution]], measure: Callable[[ActionContribution], float | None]
) -> MetricValue | None:
    """Return the mean of a measure over actions with known values; None without such actions."""
    known = {task: [value for item in items if (value := measure(item)) is not None] for task, items in by_task.items()}
    return summarize_scores({task: Ratio(sum(values), len(values)) for task, values in known.items() if values})


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
