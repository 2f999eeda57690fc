"""Observation of one environment step, shared and per agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Observation:
    """Observation at one step: shared ``text`` (o_t) plus a private view per agent (o_t^i).

    An environment may set whose ``turn`` it is, and the ``options`` that each agent chooses from.

    >>> deal = Observation("One card each.", views={"north": "You hold a king."}, turn=("north",))
    >>> deal.seen_by("north"), deal.seen_by("south")
    ('One card each.\\n\\nYou hold a king.', 'One card each.')
    """

    text: str
    views: Mapping[str, str] = field(default_factory=dict)  # private views by role
    turn: tuple[str, ...] = ()  # roles that act in this step; () leaves the order to the organization
    # allowed answers by role; a role without options writes free text
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def seen_by(self, role: str) -> str:
        """Return the shared text and the private view for one agent."""
        return "\n\n".join(part for part in (self.text, self.views.get(role, "")) if part)

    @property
    def whole(self) -> str:
        """Shared text and all private views, each labeled with its role."""
        views = (f"To {role}:\n{view}" for role, view in self.views.items())
        return "\n\n".join(part for part in (self.text, *views) if part)
