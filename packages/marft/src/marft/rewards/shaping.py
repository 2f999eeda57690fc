"""Reward shaping before credit assignment: mixture of team and own rewards, progress shaping and length penalties.

Functions that change rewards return new episodes and leave everything else unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from marft.common.types import Episode, Transition
from marft.config.algorithm import RewardSettings
from marft.rewards.groups import EQUAL_TOLERANCE

if TYPE_CHECKING:
    from marft.config.run import RunSettings


def rewards_for_credit(
    episodes: Sequence[Episode], settings: RewardSettings, limits: Mapping[str, int]
) -> list[Episode]:
    """Return episodes with the rewards for credit assignment: shaped, mixed, then penalized for length.

    Args:
        limits: ``max_new_tokens`` of the trained agents, by role.
    """
    rewarded = list(episodes)
    if settings.shaping != "none":
        rewarded = shape_rewards(rewarded, settings.shaping, settings.shaping_weight)
    rewarded = mix_rewards(rewarded, settings.team_weight, settings.own_weight)
    if settings.overlong_buffer:
        rewarded = penalize_overlong(rewarded, limits, settings.overlong_buffer)
    return rewarded


def length_limits(run: RunSettings) -> dict[str, int]:
    """Return ``max_new_tokens`` of the trained agents, by role; frozen agents have no length penalty."""
    trained = run.trained_policies
    return {agent.role: agent.sampling.max_new_tokens for agent in run.agents if agent.policy in trained}


def remove_shaping(episode: Episode, graders: Collection[str]) -> Episode:
    """Return the episode with the rewards of its graders only, without shaping terms.

    Args:
        graders: names of the reward terms that grade; without any, the episode keeps its reward.
    """
    if not graders:
        return episode
    return _with_rewards(episode, [_keep_graders(t, graders) if t.terms else t for t in episode.transitions])


def _keep_graders(transition: Transition, graders: Collection[str]) -> Transition:
    def total(*agent: str) -> float:
        return sum(transition.terms.get("/".join((name, *agent)), 0.0) for name in graders)

    agent_rewards = {agent: total(agent) for agent in transition.agent_rewards}
    return replace(transition, reward=total(), agent_rewards=agent_rewards)


def have_equal_rewards(episodes: Sequence[Episode]) -> bool:
    """Return True if every episode earned the same rewards at the same steps, up to ``EQUAL``.

    Team rewards and agents' own rewards are compared. Steps after an episode's end count as 0.
    """
    names = sorted({agent for episode in episodes for t in episode.transitions for agent in t.agent_rewards})
    length = max((len(episode.transitions) for episode in episodes), default=0)
    reward_array = np.zeros((len(episodes), length, 1 + len(names)))
    for row, episode in zip(reward_array, episodes, strict=True):
        for step, t in zip(row, episode.transitions, strict=False):
            step[:] = [t.reward, *(t.agent_rewards.get(name, 0.0) for name in names)]
    return not reward_array.size or bool(np.ptp(reward_array, axis=0).max() < EQUAL_TOLERANCE)


def local_rewards(episode: Episode) -> dict[str, float]:
    """Return each agent's own reward over the whole episode, by role."""
    totals: dict[str, float] = {}
    for transition in episode.transitions:
        for agent, reward in transition.agent_rewards.items():
            totals[agent] = totals.get(agent, 0.0) + reward
    return totals


def is_success(episode: Episode) -> bool:
    """Return True if the episode solved its task.

    If the environment does not report success, a positive sum of team and agent rewards counts as success.
    """
    if episode.success is not None:
        return episode.success
    return sum(t.reward + sum(t.agent_rewards.values()) for t in episode.transitions) > 0


def success_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return metrics of likelihood training: the share of successful episodes, and the number judged by reward.

    >>> success_metrics([])
    {'likelihood/successes': nan, 'likelihood/judged_by_reward': 0.0}
    """
    share = sum(map(is_success, episodes)) / len(episodes) if episodes else math.nan
    unknown = float(sum(episode.success is None for episode in episodes))
    return {"likelihood/successes": share, "likelihood/judged_by_reward": unknown}


def mix_rewards(episodes: Sequence[Episode], team: float, local: float) -> list[Episode]:
    """Return episodes with team rewards scaled by ``team`` and agents' own rewards by ``local`` (α · team + local)."""
    return [_with_rewards(episode, [
        replace(t, reward=team * t.reward, agent_rewards={agent: local * r for agent, r in t.agent_rewards.items()})
        for t in episode.transitions
    ]) for episode in episodes]  # fmt: skip


def shape_rewards(episodes: Sequence[Episode], kind: Literal["margin", "quality"], weight: float) -> list[Episode]:
    """Add progress over the trajectory so far to own rewards (MARTI): ``R' = R + weight · Δ`` for each graded action.

    Q is the mean reward of the earlier graded actions in the trajectory. There are two kinds:

    - ``margin``: Δ = R − Q.
    - ``quality``: Δ = Q R − (1 − Q)(1 − R).

    The first graded action is unchanged. An action is graded if its agent has a reward of its own.
    """
    return [_with_rewards(episode, _shape_transitions(episode, kind, weight)) for episode in episodes]


def _shape_transitions(episode: Episode, kind: str, weight: float) -> list[Transition]:
    grades: list[float] = []
    transitions = []
    for t, transition in enumerate(episode.transitions):
        order = list(dict.fromkeys(action.agent for action in episode.actions if action.step == t))
        shaped = dict(transition.agent_rewards)
        for agent in order:
            if agent not in shaped:
                continue
            reward = shaped[agent]
            if grades:
                q = sum(grades) / len(grades)
                delta = reward - q if kind == "margin" else q * reward - (1.0 - q) * (1.0 - reward)
                shaped[agent] = reward + weight * delta
            grades.append(reward)
        transitions.append(replace(transition, agent_rewards=shaped))
    return transitions


def penalize_overlong(episodes: Sequence[Episode], limits: Mapping[str, int], buffer: int) -> list[Episode]:
    """Subtract DAPO's soft overlong punishment from own rewards.

    An action within ``buffer`` tokens of its limit costs its agent up to 1, linearly.

    Args:
        limits: ``max_new_tokens`` by agent; other agents have no penalty.
        buffer: length of the penalized range, in tokens.
    """
    penalized = []
    for episode in episodes:
        transitions = list(episode.transitions)
        for action in episode.actions:
            if action.choice or action.agent not in limits:
                continue
            excess = int(action.own_mask.sum()) - (limits[action.agent] - buffer)
            if excess > 0 and action.step < len(transitions):
                transition = transitions[action.step]
                penalized_reward = transition.agent_rewards.get(action.agent, 0.0) - excess / buffer
                agent_rewards = {**transition.agent_rewards, action.agent: penalized_reward}
                transitions[action.step] = replace(transition, agent_rewards=agent_rewards)
        penalized.append(_with_rewards(episode, transitions))
    return penalized


def _with_rewards(episode: Episode, transitions: Sequence[Transition]) -> Episode:
    return replace(episode, transitions=tuple(transitions))
