"""Reflective organization: an actor, a critic and a reviser."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from marft.agents.agents import Agents
from marft.common.types import JointAction, Observation
from marft.config.plugin_types import OrganizationPart
from marft.config.settings import SmallCount, did_you_mean


class Reflective(OrganizationPart):
    """A draft, then ``rounds`` of criticism and revision; the last draft is the answer.

    ::

        observation ──▶ actor ──▶ critic ──▶ reviser ──▶ answer
                                    ▲           │
                                    └── rounds ─┘

    ``reviser`` may be the actor itself.
    """

    actor: str = "actor"  # role that drafts
    critic: str = "critic"  # role that criticizes
    reviser: str = "reviser"  # role that revises; may be the actor
    rounds: SmallCount = 1  # rounds of criticism and revision

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for each unknown role."""
        for field in ("actor", "critic", "reviser"):
            role = getattr(self, field)
            if role not in roles:
                yield f"team.{field}: no agent is called {role!r}{did_you_mean(role, roles)}"

    def answer_role(self, candidates: Sequence[str]) -> str:  # noqa: ARG002
        """Return the reviser's role for a single revision, or ""."""
        return self.reviser if self.rounds == 1 and self.reviser not in (self.actor, self.critic) else ""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        answer = await agents[self.actor](observation)
        for _ in range(self.rounds):
            critique = await agents[self.critic](observation, sees=[answer])
            answer = await agents[self.reviser](observation, sees=[answer, critique])
        return JointAction(answer=answer)
