"""Metrics of a batch of episodes, for the team and for each agent."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from marft.agents.chat_record import WHY
from marft.common.marks import Mark
from marft.common.types import Action, Episode
from marft.common.usage import Usage
from marft.evaluation.information import information_metrics
from marft.evaluation.trajectories.attempts import attempt_metrics
from marft.evaluation.trajectories.measures import trajectory_metrics
from marft.evaluation.writing.metrics import writing_metrics
from marft.inference.endpoints.replies import as_metrics


def episode_metrics(
    episodes: Sequence[Episode], roles: Sequence[str], version: Callable[[str], int]
) -> dict[str, float]:
    """What was sampled, how it went and what it earned. What needs a truth that nobody declares is absent.

    Args:
        version: of a policy now; an action's lag is how many updates older it is.
    """
    scored = [episode for episode in episodes if episode.scored]
    rewards = np.array([episode.total_reward for episode in scored])
    known = sum(episode.success is not None for episode in scored)
    metrics = (
        trajectory_metrics(scored, roles)
        | attempt_metrics(scored)
        | writing_metrics(scored, roles)
        | information_metrics(scored, roles)
        | {
            "reward": _mean(rewards),
            "reward_std": float(rewards.std()) if len(rewards) else math.nan,
            "success_unknown": float(len(scored) - known),
            "episodes": float(len(episodes)),
            "episodes_failed": float(sum(episode.status == "failed" for episode in episodes)),
            "episodes_timed_out": float(sum(episode.status == "timed_out" for episode in episodes)),
            "episodes_dropped": float(len(episodes) - len(scored)),
            "environment_steps": float(sum(len(episode.transitions) for episode in scored)),
        }
    )
    actions = [action for episode in scored for action in episode.actions]
    metrics |= _action_metrics(actions, version)
    metrics |= _reward_terms(scored) | _measures(scored)
    for role in roles:
        mine = _action_metrics([action for action in actions if action.agent == role], version)
        metrics |= {f"agents/{role}/{name}": value for name, value in mine.items()}
        rewards_of_role = [sum(t.agent_rewards.get(role, 0.0) for t in episode.transitions) for episode in scored]
        metrics[f"agents/{role}/own_reward"] = _mean(rewards_of_role)
    return metrics


def remote_metrics(episodes: Sequence[Episode], roles: Sequence[str]) -> dict[str, float]:
    """What the actions of each agent that is remote took, of failed episodes too. An action that was replayed in other
    episodes counts once. What it all took, actions that failed included, is counted where it is asked for."""
    actions = {action.key: action for episode in episodes for action in episode.actions}.values()
    metrics: dict[str, float] = {}
    for role in roles:
        taken = [action.usage for action in actions if action.agent == role and action.usage]
        if taken:
            metrics |= as_metrics(sum(taken, Usage()), f"agents/{role}/remote_")
    return metrics


def _reward_terms(episodes: Sequence[Episode]) -> dict[str, float]:
    """What each term of a composed reward gave in an episode, on average: the team, and each agent."""
    totals: dict[str, float] = {}
    for episode in episodes:
        for transition in episode.transitions:
            for name, share in transition.terms.items():
                term, _, agent = name.partition("/")
                key = f"agents/{agent}/rewards/{term}" if agent else f"rewards/{term}"
                totals[key] = totals.get(key, 0.0) + share
    return {name: total / len(episodes) for name, total in totals.items()}


def _measures(episodes: Sequence[Episode]) -> dict[str, float]:
    """What the environment measures, as declared last in an episode: the mean over those that have it."""
    found: dict[str, list[float]] = {}
    for episode in episodes:
        last: dict[str, float] = {}
        for transition in episode.transitions:
            last |= transition.declared.measures
        for name, value in last.items():
            found.setdefault(f"environment/{name}", []).append(value)
    return {name: _mean(values) for name, values in found.items()}


def _action_metrics(actions: Sequence[Action], version: Callable[[str], int]) -> dict[str, float]:
    return {
        "actions": float(len(actions)),
        "action_length": _mean([int(action.own.sum()) for action in actions]),
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
    """Where an agent remembers anything, or its chat was rendered anew while it used tools."""
    if not any(action.continues or action.restarted or action.restarts for action in actions):
        return {}
    return {"restarts": float(sum(bool(action.restarted) + len(action.restarts) for action in actions))}


def _segment_metrics(actions: Sequence[Action]) -> dict[str, float]:
    """Where programs ask, why actions did not go on by the ids of all that was said before."""
    reasons = Counter(action.restarted.partition(":")[0] for action in actions)
    return {f"gateway/segments/{reason}": float(reasons[reason]) for reason in WHY if reasons[reason]}


def _tool_metrics(actions: Sequence[Action]) -> dict[str, float]:
    """What was asked of tools, where anything was; ``tool_rate`` is the share of actions that asked."""
    calls = [call for action in actions for call in action.calls]
    if not calls:
        return {}
    return {
        "tool_rate": _mean([bool(action.calls) for action in actions]),
        "tool_calls": float(len(calls)),
        "tool_errors": float(sum(call.error for call in calls)),
        "tool_tokens": float(sum((action.marks == Mark.TOOL).sum() for action in actions)),
        "tool_seconds": _mean([call.seconds for call in calls]),
    }


def _helper_metrics(actions: Sequence[Action]) -> dict[str, float]:
    """Return how often actions consulted helpers, and the tokens of the replies; nothing if none did."""
    asked = [len(action.consultations) for action in actions]
    if not any(asked):
        return {}
    return {
        "consult_rate": _mean([bool(count) for count in asked]),
        "consultations": float(sum(asked)),
        "helper_tokens": float(sum(action.by_teammate.sum() for action in actions)),
    }


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan
