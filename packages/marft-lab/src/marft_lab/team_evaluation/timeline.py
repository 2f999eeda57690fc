"""Episode timelines with actions' contributions, for pages based on ``worth.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marft.common.texts import replace_surrogates, truncate
from marft.common.types import Episode
from marft_lab.team_evaluation.contributions import ActionContribution

MAX_CHARACTERS = 600  # maximum characters of a text


def build_timeline(episode: Episode, contributions: Sequence[ActionContribution]) -> dict[str, Any]:
    """Return an episode as JSON data on a time axis; ``contribution`` is None without resamples."""
    by_action = {item.action: item for item in contributions}
    actions = []
    for action in episode.actions:
        item = by_action.get(action.id)
        actions.append(
            {
                "id": action.id,
                "agent": action.agent,
                "step": action.step,
                "index": action.index,
                "started": action.started,
                "ended": action.ended,
                "sees": list(action.sees),
                "tokens": len(action.tokens),
                "text": _shorten(action.message),
                "contribution": item.contribution if item else None,
                "resampled": list(item.resampled) if item else [],
            }
        )
    return {
        "task": replace_surrogates(episode.task.id),
        "prompt": _shorten(episode.task.prompt),
        "reward": episode.total_reward,
        "actions": actions,
    }


def _shorten(text: str) -> str:
    return replace_surrogates(truncate(text, MAX_CHARACTERS))
