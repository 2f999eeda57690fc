"""Graph organization: any directed acyclic graph over agents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, ClassVar

from pydantic import Strict

from marft.agents.agents import Agents, Seat
from marft.agents.organizations.joining import closed_up, together
from marft.common.types import Action, JointAction, Observation
from marft.config.parts import OrganizationPart
from marft.config.settings import did_you_mean


class Graph(OrganizationPart):
    """Every agent acts once, after the agents visible to it; agents without a path between them run concurrently.

    ::

        observation ─┬─▶ planner ──┬─▶ coder ──┬─▶ reviewer ──▶ answer
                     └─▶ librarian ┴─▶ tester ─┘

    ``sees`` lists the agents visible to each agent: ``{ coder = ["planner", "librarian"], reviewer = ["coder",
    "tester"] }``. An agent without an entry sees only the observation.
    """

    each_once: ClassVar[bool] = True  # every agent acts once per step
    sees: dict[str, Annotated[tuple[str, ...], Strict(False)]]  # visible roles, by role

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for each unknown role, and for a cycle."""
        for agent, seen in self.sees.items():
            for role in (agent, *seen):
                if role not in roles:
                    yield f"team.sees: no agent is called {role!r}{did_you_mean(role, roles)}"
        try:
            TopologicalSorter(self.sees).prepare()
        except CycleError as error:
            yield f"team.sees: {' → '.join(reversed(error.args[1]))} is a circle, so nobody could begin"

    def answering_role(self, answering: Sequence[str]) -> str:
        """Return the only answering role, or "" with several."""
        return answering[0] if len(answering) == 1 else ""

    def without(self, roles: Sequence[str]) -> Graph:
        """Return the organization without some roles; readers of a removed agent inherit its sources."""
        return self.model_copy(update={"sees": closed_up(self.sees, roles)})

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        acting: dict[str, asyncio.Task[Action]] = {}

        async def one(seat: Seat) -> Action:
            """Request one agent's action after its sources' actions."""
            seen = [await acting[role] for role in self.sees.get(seat.role, ())]
            return await seat(observation, sees=seen)

        for role in TopologicalSorter({seat.role: self.sees.get(seat.role, ()) for seat in agents}).static_order():
            acting[role] = asyncio.ensure_future(one(agents[role]))
        await together(*acting.values())
        return JointAction()
