"""What an environment shows at one step: to everybody, and to single agents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment shows at one step: ``text`` to everybody (o_t), and beside it to each agent what is for it
    alone (o_t^i). An environment may say whose ``turn`` it is, and what each of them may choose from.

    >>> deal = Observation("One card each.", views={"north": "You hold a king."}, turn=("north",))
    >>> deal.seen_by("north"), deal.seen_by("south")
    ('One card each.\\n\\nYou hold a king.', 'One card each.')
    """

    text: str
    views: Mapping[str, str] = field(default_factory=dict)  # by role
    turn: tuple[str, ...] = ()  # roles; (): the organization decides
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by role; none: it writes

    def seen_by(self, role: str) -> str:
        """All that is shown to one agent."""
        return "\n\n".join(part for part in (self.text, self.views.get(role, "")) if part)

    @property
    def whole(self) -> str:
        """All that is shown to anybody, with who sees what."""
        views = (f"To {role}:\n{view}" for role, view in self.views.items())
        return "\n\n".join(part for part in (self.text, *views) if part)
