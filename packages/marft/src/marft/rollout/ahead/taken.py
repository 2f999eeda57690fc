"""Sampling usage of episodes, computed from their actions."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Action, Episode
from marft.common.usage import Usage
from marft.inference.endpoints.replies import as_metrics


def taken(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the sampling usage of episodes, by metric name.

    The counts match a separate engine and endpoints, except for work outside of episodes, such as failed actions. A
    choice from a list counts as prefill and not as sampled tokens.
    """
    actions = [action for episode in episodes for action in episode.actions]
    remote = [action.usage for action in actions if action.usage]
    own = [action for action in actions if not action.usage]
    return {
        "sampled_tokens": float(sum(int(action.own.sum()) for action in own if not action.choice)),
        "prefill/asked": float(sum(map(_read, own))),
        **(as_metrics(sum(remote, Usage()), "remote_") if remote else {}),
    }


def _read(action: Action) -> int:
    return sum(len(context) for context, _, _ in action.segments)
