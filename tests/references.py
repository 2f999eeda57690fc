"""Slow references, written from the formulas with plain loops over decisions: no tensors, no vectors, float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marft.common.types import Action, ActionKey, Episode
from marft.config.interfaces.credit import Level, Values

LogProbs = Mapping[ActionKey, Sequence[float]]


@dataclass
class Settings:
    chain: str
    alpha: float
    gamma_token: float
    gamma_agent: float
    gamma_step: float
    lambda_token: float
    lambda_agent: float
    lambda_step: float
    adaptive_lambda: float = 0.0


@dataclass
class Decision:
    action: int
    value: float
    reward: float = 0.0


def gae(
    episode: Episode, values: Sequence[Sequence[float]], finals: Mapping[str, float], s: Settings, level: Level
) -> list[list[float]]:
    """Advantages of one episode, by action and decision; γ and λ are looked up hop by hop.

    ``finals`` are the values of the final observation, by agent.
    """
    actions = episode.actions
    pay = rewards(episode, s)
    found: dict[tuple[int, int], float] = {}

    def size(k: int) -> int:
        return 1 if level == "action" else len(actions[k].tokens)

    def advantage(k: int, j: int) -> float:
        """Of decision j of action k, by recursion on what follows it."""
        if (k, j) in found:
            return found[k, j]
        here = values[k][j]
        if j + 1 < size(k):
            lam = max(0.0, 1 - 1 / (s.adaptive_lambda * size(k))) if s.adaptive_lambda else s.lambda_token
            result = s.gamma_token * values[k][j + 1] - here + s.gamma_token * lam * advantage(k, j + 1)
        else:
            after = successor(actions, k, s.chain)
            if after is None:
                passed = len(episode.transitions) - actions[k].step
                final = finals[actions[goes_on_with(actions, k, s.chain)].agent] if finals else 0.0
                result = pay[k] + s.gamma_step**passed * final - here
            else:
                passed = actions[after].step - actions[k].step
                gamma = s.gamma_agent if passed == 0 else s.gamma_step**passed
                lam = s.lambda_agent if passed == 0 else s.lambda_step
                result = pay[k] + gamma * values[after][0] - here + gamma * lam * advantage(after, 0)
        found[k, j] = result
        return result

    for k in reversed(range(len(actions))):  # later ones first, so that the recursion stays shallow
        for j in reversed(range(size(k))):
            advantage(k, j)
    return [[found[k, j] for j in range(size(k))] for k in range(len(actions))]


def successor(actions: Sequence[Action], k: int, chain: str) -> int | None:
    later = range(k + 1, len(actions))
    if chain == "joint":
        return k + 1 if k + 1 < len(actions) else None
    own = [j for j in later if actions[j].agent == actions[k].agent]
    if chain == "agent":
        return own[0] if own else None
    seeing = [j for j in later if actions[j].step == actions[k].step and actions[k].id in actions[j].sees]
    if seeing:
        return seeing[0]
    if not own:
        return None
    if actions[own[0]].step == actions[k].step:
        return own[0]
    return min(roots(actions, own[0]))


def goes_on_with(actions: Sequence[Action], k: int, chain: str) -> int:
    """The decision whose agent would decide after k, were there a step more."""
    if chain == "joint":
        return min(j for j in range(len(actions)) if actions[j].step == actions[-1].step)
    return k if chain == "agent" else min(roots(actions, k))


def roots(actions: Sequence[Action], k: int) -> set[int]:
    seen = [j for j in range(len(actions)) if actions[j].step == actions[k].step and actions[j].id in actions[k].sees]
    return {k} if not seen else set().union(*(roots(actions, j) for j in seen))


def rewards(episode: Episode, s: Settings) -> list[float]:
    """What each action is paid (formulas §2)."""
    actions = episode.actions
    pay = [0.0] * len(actions)
    for t, transition in enumerate(episode.transitions):
        so_far = [k for k in range(len(actions)) if actions[k].step <= t]
        agents = {actions[k].agent for k in so_far}
        last_of = {agent: max(k for k in so_far if actions[k].agent == agent) for agent in agents}
        if s.chain == "joint":
            receivers = so_far[-1:]
        elif s.chain == "agent":
            receivers = list(last_of.values())
        else:
            receivers = [
                k for k in last_of.values()
                if (j := successor(actions, k, "graph")) is None or actions[j].step != actions[k].step
            ]  # fmt: skip
        for k in receivers:
            pay[k] += s.alpha * transition.reward * s.gamma_step ** (t - actions[k].step)
        for agent, reward in transition.agent_rewards.items():
            acts_now = any(actions[k].agent == agent and actions[k].step == t for k in so_far)
            if s.chain == "joint" and so_far and not acts_now:
                pay[so_far[-1]] += reward * s.gamma_step ** (t - actions[so_far[-1]].step)
            elif agent in last_of:
                pay[last_of[agent]] += reward * s.gamma_step ** (t - actions[last_of[agent]].step)
    return pay


def values_of(values: Values, episodes: Sequence[Episode], number: int) -> list[list[float]]:
    first = sum(len(episode.actions) for episode in episodes[:number])
    return [list(map(float, v)) for v in values.actions[first : first + len(episodes[number].actions)]]


def normalised(values: Sequence[float]) -> list[float]:
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) if len(values) > 1 else 0.0
    return [(v - mean) / (spread + 1e-8) for v in values]


def ppo_term(log_prob: float, old: float, advantage: float, low: float, high: float, dual: float) -> float:
    """The loss of one unit."""
    ratio = math.exp(max(-20.0, min(20.0, log_prob - old)))
    surrogate = min(ratio * advantage, max(1 - low, min(1 + high, ratio)) * advantage)
    if dual and advantage < 0:
        surrogate = max(surrogate, dual * advantage)
    return -surrogate


def value_term(value: float, old: float, target: float, clip: float, delta: float | None) -> float:
    def loss(error: float) -> float:
        if delta is None or abs(error) <= delta:
            return 0.5 * error * error
        return delta * (abs(error) - 0.5 * delta)

    if not clip:
        return loss(value - target)
    clipped = old + max(-clip, min(clip, value - old))
    return max(loss(value - target), loss(clipped - target))


def action_ratio(log_probs: Sequence[float], old: Sequence[float], z: float) -> float:
    """Eq. 6: exp of the clamped difference of whole-action log-probs over Z."""
    difference = (sum(log_probs) - sum(old)) / z
    return math.exp(max(-20.0, min(20.0, difference)))


def joint_kl(episodes: Sequence[Episode], old: LogProbs, new: LogProbs) -> float:
    """The team's KL, nats an environment step: for every step of every episode the sum of k3 over all tokens of all
    actions in it, and the mean over steps in which anybody acted."""
    of_steps: list[float] = []
    for episode in episodes:
        for step in sorted({action.step for action in episode.actions}):
            total = 0.0
            for action in episode.actions:
                if action.step == step:
                    for before, after in zip(old[action.key], new[action.key], strict=True):
                        d = float(after) - float(before)
                        total += math.exp(d) - 1.0 - d
            of_steps.append(total)
    return sum(of_steps) / len(of_steps)
