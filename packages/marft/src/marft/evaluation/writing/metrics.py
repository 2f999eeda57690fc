"""Writing metrics for each agent over a batch of episodes."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Action, Episode
from marft.evaluation.writing.characters import character_shares
from marft.evaluation.writing.repetition import repetition
from marft.evaluation.writing.scripts import other_script


def writing_metrics(episodes: Sequence[Episode], roles: Sequence[str]) -> dict[str, float]:
    """Return metrics under ``agents/<role>/``; metrics without text are absent."""
    written = {role: [(e, a) for e in episodes for a in e.actions if a.agent == role] for role in roles}
    tokens = {role: sum(int(action.own.sum()) for _, action in mine) for role, mine in written.items()}
    total = sum(tokens.values())
    metrics: dict[str, float] = {}
    for role, mine in written.items():
        found: dict[str, float | None] = {
            "repetition": repetition([action for _, action in mine]),
            "other_script": other_script((_shown(episode, action), action.own_text) for episode, action in mine),
            "token_share": tokens[role] / total if total and len(roles) > 1 else None,
        }
        found |= character_shares([action.own_text for _, action in mine])
        metrics |= {f"agents/{role}/{name}": value for name, value in found.items() if value is not None}
    return metrics


def _shown(episode: Episode, action: Action) -> str:
    """Return the text shown by the environment before the action."""
    steps = [transition.observation.seen_by(action.agent) for transition in episode.transitions[: action.step + 1]]
    return "\n".join([episode.task.prompt, *steps])
