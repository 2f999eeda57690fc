"""What each agent contributed, by what would have been had it acted again (counterfactuals)."""

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
    """One action, and the rewards of the episodes in which it was sampled again.

    ``contribution`` is ``R − mean_j R_j``. ``variance`` is the unbiased one of ``R, R_1, …, R_k``, all drawn from where
    the action was: how much of the reward hung on what was said from there on. ``own`` is what of it hung on the action
    itself: ``variance`` less that of the action after it, where sampling that one again samples again all that followed
    this one but for itself (law of total variance); absent where there is no such action.
    """

    action: str
    agent: str
    reward: float
    resampled: Sequence[float]
    own: float | None = None

    @property
    def contribution(self) -> float:
        return self.reward - fmean(self.resampled)

    @property
    def variance(self) -> float:
        return variance([self.reward, *self.resampled])


@dataclass(frozen=True, slots=True)
class Share:
    """What the actions of an agent contributed, an action. The first is 0 but for chance: an action is as good as what
    its policy says otherwise. By its variance it is seen whether anything hangs on it."""

    agent: str
    actions: int
    contribution: Value
    variance: Value
    own: Value | None


def contributions(episode: Episode, forks: Iterable[Episode]) -> list[Contribution]:
    """The contributions of an episode's actions, in their order; those of which no fork was scored are left out.

    Args:
        forks: episodes in which an action of this one was sampled again.
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
    """The actions that come about again when one is sampled again: it, what depends on it, and all later steps."""
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
    """What each agent's actions came to, with intervals by task.

    Args:
        episodes: the contributions in an episode of each task.
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
