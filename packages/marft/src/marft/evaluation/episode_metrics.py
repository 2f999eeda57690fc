"""Metrics of an episode batch, for the team and for each agent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from marft.agents.chat_history import RESTART_REASONS
from marft.common.errors import UserError
from marft.common.seeds import generator
from marft.common.token_data import TokenSource
from marft.common.types import Action, Episode
from marft.common.usage import Usage
from marft.evaluation.ratios import attempt_metrics
from marft.evaluation.trajectory_metrics import trajectory_metrics
from marft.evaluation.writing_metrics import compute_text_metrics
from marft.inference.endpoints.responses import to_metrics

SHUFFLES = 20
Codes = npt.NDArray[np.intp]  # [N], one integer for each distinct value


class InformationEstimate(NamedTuple):
    """Mutual information between private observations and messages, in bits.

    Args:
        mutual_information: plug-in mutual information of the pairs.
        shuffled_mean: mean plug-in mutual information of shuffled pairs.
        shuffled_std: standard deviation over the shuffles.
        plug_in_entropy: plug-in entropy of the private observations.
        entropy: entropy of the private observations, corrected for bias.
    """

    mutual_information: float
    shuffled_mean: float
    shuffled_std: float
    plug_in_entropy: float
    entropy: float

    @property
    def excess(self) -> float:
        """Information beyond chance in bits, ``Ĥ (I − null) / (H − null)``.

        The value can be slightly below 0. If the largest possible excess is within three standard deviations, too few
        messages repeat for a fraction. The value is then the excess itself.
        """
        excess, room = self.mutual_information - self.shuffled_mean, self.plug_in_entropy - self.shuffled_mean
        return self.entropy * excess / room if room > max(3 * self.shuffled_std, 1e-9) else excess


def estimate_information(
    pairs: Sequence[tuple[Hashable, Hashable]], shuffles: int = SHUFFLES, seed: int = 0
) -> InformationEstimate:
    """Estimate the information about the first items of pairs in their second items.

    The plug-in estimate is too high for few pairs: if every message is unique, each message identifies its episode.
    Shuffled pairs measure this excess. As in adjusted mutual information (Vinh et al. 2010), the excess over chance is
    divided by the largest possible excess. This fraction is multiplied by the entropy of the private observations.

    >>> found = estimate_information([("a", "x"), ("b", "y")] * 50)
    >>> round(found.excess, 1), round(found.entropy, 1)
    (1.0, 1.0)

    Raises:
        UserError: ``pairs`` is empty.
    """
    if not pairs:
        raise UserError("no pairs: mutual information is of at least one")
    first, second = _encode([pair[0] for pair in pairs]), _encode([pair[1] for pair in pairs])
    random = generator(seed, "information")
    shuffled = np.array([mutual_information(first, random.permutation(second)) for _ in range(shuffles)])
    shuffled_mean, shuffled_std = (float(shuffled.mean()), float(shuffled.std())) if shuffles else (0.0, 0.0)
    return InformationEstimate(
        mutual_information(first, second), shuffled_mean, shuffled_std, plug_in_entropy(first), corrected_entropy(first)
    )


def mutual_information(first: Codes, second: Codes) -> float:
    """Return ``H(X) + H(Y) − H(X, Y)`` in bits, from plug-in entropies.

    Args:
        first: [N].
        second: [N].
    """
    return plug_in_entropy(first) + plug_in_entropy(second) - plug_in_entropy(first * (int(second.max()) + 1) + second)


def plug_in_entropy(codes: Codes) -> float:
    """Return the plug-in entropy ``−Σ p̂ log₂ p̂`` in bits.

    Args:
        codes: [N].
    """
    shares = np.unique(codes, return_counts=True)[1] / len(codes)
    return float(-(shares * np.log2(shares)).sum())


def corrected_entropy(codes: Codes) -> float:
    """Return the entropy in bits, corrected for the bias of the plug-in estimate.

    The correction is that of Miller 1955, ``(K − 1) / (2 N ln 2)`` for K distinct values among N.

    Args:
        codes: [N].
    """
    return plug_in_entropy(codes) + (len(np.unique(codes)) - 1) / (2 * len(codes) * math.log(2))


def information_metrics(episodes: Sequence[Episode], roles: Sequence[str]) -> dict[str, float]:
    """Return metrics under ``agents/<role>/`` for each agent with a declared private observation."""
    metrics: dict[str, float] = {}
    for role in roles:
        pairs = [pair for episode in episodes for pair in _observation_pairs(episode, role)]
        if pairs:
            estimate = estimate_information(pairs)
            metrics[f"agents/{role}/message_information"] = estimate.excess
            metrics[f"agents/{role}/hidden_entropy"] = estimate.entropy
    return metrics


def _observation_pairs(episode: Episode, role: str) -> list[tuple[str, str]]:
    """Return the private observation and message of an agent, for each step with both.

    Case and spacing of messages are normalized.
    """
    pairs = []
    messages = {action.step: action.message for action in episode.actions if action.agent == role}
    for step, transition in enumerate(episode.transitions):
        observation = transition.declared.hidden.get(role)
        if observation is not None and step in messages:
            pairs.append((observation, " ".join(messages[step].casefold().split())))
    return pairs


def _encode(values: Sequence[Hashable]) -> Codes:
    code_by_value: dict[Hashable, int] = {}
    return np.array([code_by_value.setdefault(value, len(code_by_value)) for value in values], np.intp)


def episode_metrics(
    episodes: Sequence[Episode], roles: Sequence[str], version: Callable[[str], int]
) -> dict[str, float]:
    """Return sampling, outcome and reward metrics of a batch of episodes.

    Metrics that need an undeclared ground truth are absent.

    Args:
        version: returns the current version of a policy. The lag of an action is the number of updates since then.
    """
    scored = [episode for episode in episodes if episode.is_scored]
    rewards = np.array([episode.total_reward for episode in scored])
    num_known = sum(episode.success is not None for episode in scored)
    metrics = (
        trajectory_metrics(scored, roles)
        | attempt_metrics(scored)
        | compute_text_metrics(scored, roles)
        | information_metrics(scored, roles)
        | {
            "reward": _mean(rewards),
            "reward_std": float(rewards.std()) if len(rewards) else math.nan,
            "success_unknown": float(len(scored) - num_known),
            "episodes": float(len(episodes)),
            "episodes_failed": float(sum(episode.status == "failed" for episode in episodes)),
            "episodes_timed_out": float(sum(episode.status == "timed_out" for episode in episodes)),
            "episodes_dropped": float(len(episodes) - len(scored)),
            "environment_steps": float(sum(len(episode.transitions) for episode in scored)),
        }
    )
    actions = [action for episode in scored for action in episode.actions]
    metrics |= _action_metrics(actions, version)
    metrics |= _reward_term_metrics(scored) | _environment_metrics(scored)
    for role in roles:
        own_metrics = _action_metrics([action for action in actions if action.agent == role], version)
        metrics |= {f"agents/{role}/{name}": value for name, value in own_metrics.items()}
        rewards_of_role = [sum(t.agent_rewards.get(role, 0.0) for t in episode.transitions) for episode in scored]
        metrics[f"agents/{role}/own_reward"] = _mean(rewards_of_role)
    return metrics


def remote_usage_metrics(episodes: Sequence[Episode], roles: Sequence[str]) -> dict[str, float]:
    """Return the usage of each remote agent, including actions of failed episodes.

    An action that is replayed in other episodes counts once. Usage by failed actions is not included; it is counted at
    the request.
    """
    actions = {action.key: action for episode in episodes for action in episode.actions}.values()
    metrics: dict[str, float] = {}
    for role in roles:
        usages = [action.usage for action in actions if action.agent == role and action.usage]
        if usages:
            metrics |= to_metrics(sum(usages, Usage()), f"agents/{role}/remote_")
    return metrics


def _reward_term_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the mean contribution of each reward term to an episode, for the team and for each agent."""
    totals: dict[str, float] = {}
    for episode in episodes:
        for transition in episode.transitions:
            for name, share in transition.terms.items():
                term, _, agent = name.partition("/")
                key = f"agents/{agent}/rewards/{term}" if agent else f"rewards/{term}"
                totals[key] = totals.get(key, 0.0) + share
    return {name: total / len(episodes) for name, total in totals.items()}


def _environment_metrics(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return environment measurements: last values in the episodes, averaged over episodes with a value."""
    values_by_name: dict[str, list[float]] = {}
    for episode in episodes:
        last: dict[str, float] = {}
        for transition in episode.transitions:
            last |= transition.declared.measures
        for name, value in last.items():
            values_by_name.setdefault(f"environment/{name}", []).append(value)
    return {name: _mean(values) for name, values in values_by_name.items()}


def _action_metrics(actions: Sequence[Action], version: Callable[[str], int]) -> dict[str, float]:
    return {
        "actions": float(len(actions)),
        "action_length": _mean([int(action.own_mask.sum()) for action in actions]),
        "truncation_rate": _mean([action.finish == "length" for action in actions]),
        "prompt_tokens": _mean([len(action.prompt) for action in actions]),
        "truncated_tokens": float(sum(action.truncated_tokens for action in actions)),
        **_restart_metrics(actions),
        **_segment_metrics(actions),
        **_tool_metrics(actions),
        **_helper_metrics(actions),
        "policy_lag": _mean([version(action.policy) - action.versions.lowest for action in actions]),
    }


def _restart_metrics(actions: Sequence[Action]) -> dict[str, float]:
    """Return the number of prompt resets.

    The result is empty if no agent has a memory and no chat was re-rendered during tool use.
    """
    if not any(action.continues or action.restarted or action.restarts for action in actions):
        return {}
    return {"prompt_resets": float(sum(bool(action.restarted) + len(action.restarts) for action in actions))}


def _segment_metrics(actions: Sequence[Action]) -> dict[str, float]:
    """Return how often a program request did not continue its chat by exact token IDs, by reason."""
    reasons = Counter(action.restarted.partition(":")[0] for action in actions)
    return {f"gateway/segments/{reason}": float(reasons[reason]) for reason in RESTART_REASONS if reasons[reason]}


def _tool_metrics(actions: Sequence[Action]) -> dict[str, float]:
    """Return tool metrics; nothing without tool calls. ``tool_use_rate`` is the share of actions with tool calls."""
    calls = [call for action in actions for call in action.calls]
    if not calls:
        return {}
    return {
        "tool_use_rate": _mean([bool(action.calls) for action in actions]),
        "tool_calls": float(len(calls)),
        "tool_errors": float(sum(call.error for call in calls)),
        "tool_tokens": float(sum((action.marks == TokenSource.TOOL).sum() for action in actions)),
        "tool_seconds": _mean([call.seconds for call in calls]),
    }


def _helper_metrics(actions: Sequence[Action]) -> dict[str, float]:
    """Return the frequency of helper calls and the tokens in their replies; nothing without helper calls."""
    call_counts = [len(action.consultations) for action in actions]
    if not any(call_counts):
        return {}
    return {
        "helper_call_rate": _mean([bool(count) for count in call_counts]),
        "helper_calls": float(sum(call_counts)),
        "teammate_tokens": float(sum(action.teammate_mask.sum() for action in actions)),
    }


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan
