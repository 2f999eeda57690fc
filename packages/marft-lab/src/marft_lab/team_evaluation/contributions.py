"""Each agent's contribution, from counterfactual resamples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from marft.common.types import Action, Episode
from marft.evaluation.trajectories.ratio import Ratio
from marft.rollout.fork_plans.counterfactual import find_dependents
from marft_lab.team_evaluation.scores import MetricValue, compute_value


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
        return ActionContribution(item.action, item.agent, item.reward, item.resampled, item.variance)
    same = next((by_action[name] for name in later if name in by_action and affected[name] == later), None)
    own_variance = None if same is None else item.variance - same.variance
    return ActionContribution(item.action, item.agent, item.reward, item.resampled, own_variance)


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
        by_task = {task: items for task, items in by_task.items() if items}
        means = {
            "contribution": {
                t: Ratio(sum(item.contribution for item in items), len(items)) for t, items in by_task.items()
            },
            "variance": {t: Ratio(sum(item.variance for item in items), len(items)) for t, items in by_task.items()},
        }
        own_variances = {task: [item.own for item in items if item.own is not None] for task, items in by_task.items()}
        contribution, spread = compute_value(means["contribution"]), compute_value(means["variance"])
        if contribution is not None and spread is not None:
            own_value = compute_value(
                {task: Ratio(sum(items), len(items)) for task, items in own_variances.items() if items}
            )
            results.append(AgentContribution(role, sum(map(len, by_task.values())), contribution, spread, own_value))
    return results
