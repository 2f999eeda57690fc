"""JSON representation of actions and episodes for reports."""

from __future__ import annotations

from marft.common.types import Action, Episode

MAX_EXAMPLES = 6  # number of episodes that an evaluation keeps in full


def action_to_dict(action: Action) -> dict[str, object]:
    """Return an action's tool calls and text for a page or a JSON file."""
    calls = [f"{call.name or 'unreadable call'} {call.arguments} → {call.output}" for call in action.calls]
    return {"agent": action.agent, "step": action.step, "calls": calls, "text": action.text}


def episode_to_dict(episode: Episode) -> dict[str, object]:
    """Return a scored episode for a page or a JSON file."""
    return {
        "task": episode.task.id,
        "observation": episode.transitions[0].observation.full_text,
        "actions": [action_to_dict(action) for action in episode.actions],
        "reward": episode.total_reward,
        "success": episode.success,
    }
