"""Episode timelines with actions' contributions, for pages based on ``worth.json``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marft.common.texts import cut, storable
from marft.common.types import Episode
from marft_lab.team_worth.contributions import Contribution

LONGEST = 600  # maximum characters of a text


def timeline(episode: Episode, found: Sequence[Contribution]) -> dict[str, Any]:
    """Return an episode as JSON data on a time axis; ``contribution`` is None without resamples."""
    by_action = {one.action: one for one in found}
    actions = []
    for action in episode.actions:
        one = by_action.get(action.id)
        actions.append(
            {
                "id": action.id, "agent": action.agent, "step": action.step, "index": action.index,
                "started": action.started, "ended": action.ended, "sees": list(action.sees),
                "tokens": len(action.tokens), "text": _short(action.message),
                "contribution": one.contribution if one else None, "resampled": list(one.resampled) if one else [],
            }
        )  # fmt: skip
    return {
        "task": storable(episode.task.id), "prompt": _short(episode.task.prompt), "reward": episode.total_reward,
        "actions": actions,
    }  # fmt: skip


def _short(text: str) -> str:
    return storable(cut(text, LONGEST))
