"""Metrics of an episode batch, for the team and for each agent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from marft.agents.chat_history import RESTART_REASONS
from marft.common.token_data import TokenSource
from marft.common.types import Action, Episode
from marft.common.usage import Usage
from marft.evaluation.information import information_metrics
from marft.evaluation.text_metrics.aggregate import compute_text_metrics
from marft.evaluation.trajectories.attempts import attempt_metrics
from marft.evaluation.trajectories.registry import trajectory_metrics
from marft.inference.endpoints.responses import to_metrics


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


def remote_metrics(episodes: Sequence[Episode], roles: Sequence[str]) -> dict[str, float]:
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
    """Return tool metrics; nothing without tool calls. ``tool_rate`` is the share of actions with tool calls."""
    calls = [call for action in actions for call in action.calls]
    if not calls:
        return {}
    return {
        "tool_rate": _mean([bool(action.calls) for action in actions]),
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
        "helper_tokens": float(sum(action.teammate_mask.sum() for action in actions)),
    }


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan
