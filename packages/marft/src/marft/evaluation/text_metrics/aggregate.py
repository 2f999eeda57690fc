"""Writing metrics for each agent over a batch of episodes."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Action, Episode
from marft.evaluation.text_metrics.characters import character_shares
from marft.evaluation.text_metrics.repetition import repetition
from marft.evaluation.text_metrics.scripts import other_script


def compute_text_metrics(episodes: Sequence[Episode], roles: Sequence[str]) -> dict[str, float]:
    """Return metrics under ``agents/<role>/``; metrics without text are absent."""
    actions_by_role = {role: [(e, a) for e in episodes for a in e.actions if a.agent == role] for role in roles}
    tokens = {
        role: sum(int(action.own_mask.sum()) for _, action in own_actions)
        for role, own_actions in actions_by_role.items()
    }
    total = sum(tokens.values())
    metrics: dict[str, float] = {}
    for role, own_actions in actions_by_role.items():
        values: dict[str, float | None] = {
            "repetition": repetition([action for _, action in own_actions]),
            "other_script": other_script(
                (_visible_text(episode, action), action.agent_text) for episode, action in own_actions
            ),
            "token_share": tokens[role] / total if total and len(roles) > 1 else None,
        }
        values |= character_shares([action.agent_text for _, action in own_actions])
        metrics |= {f"agents/{role}/{name}": value for name, value in values.items() if value is not None}
    return metrics


def _visible_text(episode: Episode, action: Action) -> str:
    """Return the text shown by the environment before the action."""
    steps = [transition.observation.for_role(action.agent) for transition in episode.transitions[: action.step + 1]]
    return "\n".join([episode.task.prompt, *steps])
