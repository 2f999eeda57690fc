"""Hierarchical organization: a planner with a list of subtasks, workers, and an agent that combines results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from marft.agents.agents import Agents, MessageOverride
from marft.agents.organizations.utils import answer_agent, gather_actions
from marft.common.types import JointAction, Observation
from marft.config.plugin_types import OrganizationPart
from marft.config.settings import Names, SmallCount, did_you_mean

_ITEM = re.compile(r"^\s*(?:\d+[.):]|[-*•])\s+(.+)$", re.MULTILINE)


class Hierarchical(OrganizationPart):
    """A planner's list has one item per subtask, and each item goes to a worker. A worker sees only its item. The
    workers act concurrently; with more items than workers, the items are distributed in turn. The answering agent
    sees the plan and all results.

    ::

        observation ──▶ planner ─┬─ 1. … ─▶ worker ─┐
                                 ├─ 2. … ─▶ worker ─┼─▶ writer ──▶ answer
                                 └─ 3. … ─▶ worker ─┘

    A plan without a list is one subtask. Items beyond ``max_subtasks`` are dropped; the planner learns this through its
    credit.
    """

    planner: str = "planner"  # role that writes the list
    workers: Annotated[Names, Field(min_length=1)] = ("worker",)  # roles that work on the items
    max_subtasks: SmallCount = 4  # maximum items from the list

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for each unknown role."""
        for role in (self.planner, *self.workers):
            if role not in roles:
                yield f"team: no agent is called {role!r}{did_you_mean(role, roles)}"

    def answer_role(self, candidates: Sequence[str]) -> str:
        """Return the role for combining the results, or "" if this role also plans or works."""
        return "" if candidates[-1] in (self.planner, *self.workers) else candidates[-1]

    def without_agents(self, roles: Sequence[str]) -> Hierarchical:
        """Return the organization without some roles; the remaining workers take all items."""
        return self.model_copy(update={"workers": tuple(role for role in self.workers if role not in roles)})

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        plan = await agents[self.planner](observation)
        parts = parse_subtasks(plan.message)[: self.max_subtasks]
        results = await gather_actions(
            *(
                agents[self.workers[number % len(self.workers)]](observation, sees=[MessageOverride(plan, part)])
                for number, part in enumerate(parts)
            )
        )
        return JointAction(answer=await answer_agent(agents)(observation, sees=[plan, *results]))


def parse_subtasks(text: str) -> list[str]:
    """Return the items of a list, or the whole text.

    >>> parse_subtasks("Plan:\\n1. add\\n2) check")
    ['add', 'check']
    >>> parse_subtasks("just add")
    ['just add']
    """
    return [item.strip() for item in _ITEM.findall(text)] or [text.strip()]
