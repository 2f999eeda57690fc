"""What the sampling of episodes has taken, as their actions tell it."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Action, Episode
from marft.common.usage import Usage
from marft.inference.endpoints.replies import as_metrics


def taken(episodes: Sequence[Episode]) -> dict[str, float]:
    """As an engine apart and endpoints count it, by the name of a metric: without what is in no episode, such as an
    action that failed. What is chosen from a list is read, and not sampled."""
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
