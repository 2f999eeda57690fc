"""Graph organization: any directed acyclic graph over agents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, ClassVar

from pydantic import Strict

from marft.agents.agents import AgentHandle, Agents
from marft.agents.organizations.utils import gather_actions, remove_roles
from marft.common.types import Action, JointAction, Observation
from marft.config.plugin_types import OrganizationPart
from marft.config.settings import did_you_mean


class Graph(OrganizationPart):
    """Every agent acts once, after the agents visible to it; agents without a path between them run concurrently.

    ::

        observation ─┬─▶ planner ──┬─▶ coder ──┬─▶ reviewer ──▶ answer
                     └─▶ librarian ┴─▶ tester ─┘

    ``visible`` lists the agents visible to each agent: ``{ coder = ["planner", "librarian"], reviewer = ["coder",
    "tester"] }``. An agent without an entry sees only the observation.
    """

    single_action_each: ClassVar[bool] = True  # every agent acts once per step
    visible: dict[str, Annotated[tuple[str, ...], Strict(False)]]  # visible roles, by role

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for each unknown role, and for a cycle."""
        for agent, seen in self.visible.items():
            for role in (agent, *seen):
                if role not in roles:
                    yield f"team.visible: no agent is called {role!r}{did_you_mean(role, roles)}"
        try:
            TopologicalSorter(self.visible).prepare()
        except CycleError as error:
            yield f"team.visible: {' → '.join(reversed(error.args[1]))} is a circle, so nobody could begin"

    def answer_role(self, candidates: Sequence[str]) -> str:
        """Return the only answering role, or "" with several."""
        return candidates[0] if len(candidates) == 1 else ""

    def without_agents(self, roles: Sequence[str]) -> Graph:
        """Return the organization without some roles; readers of a removed agent inherit its sources."""
        return self.model_copy(update={"visible": remove_roles(self.visible, roles)})

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        tasks: dict[str, asyncio.Task[Action]] = {}

        async def request_action(handle: AgentHandle) -> Action:
            """Request one agent's action after its sources' actions."""
            seen = [await tasks[role] for role in self.visible.get(handle.role, ())]
            return await handle(observation, sees=seen)

        for role in TopologicalSorter(
            {handle.role: self.visible.get(handle.role, ()) for handle in agents}
        ).static_order():
            tasks[role] = asyncio.ensure_future(request_action(agents[role]))
        await gather_actions(*tasks.values())
        return JointAction()
