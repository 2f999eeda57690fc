"""Each agent's contribution, from counterfactual resamples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from marft.common.types import Action, Episode
from marft.evaluation.trajectories.ratio import Ratio
from marft.rollout.forking.counterfactual import dependents
from marft_lab.team_worth.scores import Value, value_of


@dataclass(frozen=True, slots=True)
class Contribution:
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
class Share:
    """An agent's mean contribution per action.

    The contribution averages zero, up to noise: an action is as good as other samples of its policy. The variance shows
    the effect of the action on the reward.
    """

    agent: str
    actions: int
    contribution: Value
    variance: Value
    own: Value | None


def contributions(episode: Episode, forks: Iterable[Episode]) -> list[Contribution]:
    """Return the contributions of an episode's actions, in order; actions without a scored fork are omitted.

    Args:
        episode: episode.
        forks: episodes with a resampled action of this episode.
    """
    rewards: dict[str, list[float]] = {}
    for fork in forks:
        if fork.fork and fork.fork.origin == episode.name and fork.scored:
            rewards.setdefault(fork.fork.at, []).append(fork.total_reward)
    found = {
        action.id: Contribution(action.id, action.agent, episode.total_reward, rewards[action.id])
        for action in episode.actions
        if action.id in rewards
    }
    anew = {action.id: sampled_again(episode.actions, action) for action in episode.actions}
    return [_with_own(one, found, anew) for one in found.values()]


def sampled_again(actions: Sequence[Action], action: Action) -> frozenset[str]:
    """Return the ids of the actions affected by a resample: the action, its dependents, and all later steps."""
    later = {other.id for other in actions if other.step > action.step}
    return frozenset(later | dependents(actions, action))


def _with_own(one: Contribution, found: Mapping[str, Contribution], anew: Mapping[str, frozenset[str]]) -> Contribution:
    after = anew[one.action] - {one.action}
    if not after:
        return Contribution(one.action, one.agent, one.reward, one.resampled, one.variance)
    same = next((found[name] for name in after if name in found and anew[name] == after), None)
    own = None if same is None else one.variance - same.variance
    return Contribution(one.action, one.agent, one.reward, one.resampled, own)


def shares(episodes: Mapping[str, Sequence[Contribution]], roles: Sequence[str]) -> list[Share]:
    """Return the contribution of each agent, with intervals over tasks.

    Args:
        episodes: contributions in one episode per task.
        roles: roles of the team.
    """
    found = []
    for role in roles:
        mine = {task: [one for one in some if one.agent == role] for task, some in episodes.items()}
        mine = {task: some for task, some in mine.items() if some}
        means = {
            "contribution": {t: Ratio(sum(one.contribution for one in some), len(some)) for t, some in mine.items()},
            "variance": {t: Ratio(sum(one.variance for one in some), len(some)) for t, some in mine.items()},
        }
        own = {task: [one.own for one in some if one.own is not None] for task, some in mine.items()}
        contribution, spread = value_of(means["contribution"]), value_of(means["variance"])
        if contribution is not None and spread is not None:
            alone = value_of({task: Ratio(sum(some), len(some)) for task, some in own.items() if some})
            found.append(Share(role, sum(map(len, mine.values())), contribution, spread, alone))
    return found
