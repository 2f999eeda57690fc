"""Sampling usage of episodes, computed from their actions."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Action, Episode
from marft.common.usage import Usage
from marft.inference.endpoints.responses import to_metrics


def compute_usage(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the sampling usage of episodes, by metric name.

    The counts match a separate engine and endpoints, except for work outside of episodes, such as failed actions. A
    choice from a list counts as prefill and not as sampled tokens.
    """
    actions = [action for episode in episodes for action in episode.actions]
    remote = [action.usage for action in actions if action.usage]
    local_actions = [action for action in actions if not action.usage]
    return {
        "sampled_tokens": float(sum(int(action.own_mask.sum()) for action in local_actions if not action.choice)),
        "prefill/prompt_tokens": float(sum(map(_count_prompt_tokens, local_actions))),
        **(to_metrics(sum(remote, Usage()), "remote_") if remote else {}),
    }


def _count_prompt_tokens(action: Action) -> int:
    return sum(len(context) for context, _, _ in action.segments)
