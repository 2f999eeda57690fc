"""An action as reports show it."""

from __future__ import annotations

from marft.types import Action


def shown(action: Action) -> dict[str, object]:
    """What an agent used and said, for a page or a JSON file."""
    calls = [f"{call.name or 'unreadable call'} {call.arguments} → {call.output}" for call in action.calls]
    return {"agent": action.agent, "step": action.step, "calls": calls, "text": action.text}
