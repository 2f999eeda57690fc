"""A planner that decides how many sub-tasks there are, workers, and somebody who puts the pieces together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from marft.agents.agents import Agents, Excerpt
from marft.agents.organizations.joining import answering, together
from marft.common.types import JointAction, Observation
from marft.config.parts import OrganizationPart
from marft.config.settings import Few, Names, did_you_mean

_ITEM = re.compile(r"^\s*(?:\d+[.):]|[-*•])\s+(.+)$", re.MULTILINE)


class Hierarchical(OrganizationPart):
    """The planner's list has one item a sub-task. Each goes to a worker, who sees that item alone; the workers act at
    the same time, in turns if there are more items than workers. The agent that answers sees the plan and all results.

    ::

        observation ──▶ planner ─┬─ 1. … ─▶ worker ─┐
                                 ├─ 2. … ─▶ worker ─┼─▶ writer ──▶ answer
                                 └─ 3. … ─▶ worker ─┘

    A plan without a list is one sub-task. Items beyond ``most`` are dropped, which the planner's credit will show it.
    """

    planner: str = "planner"  # the role that makes the list
    workers: Annotated[Names, Field(min_length=1)] = ("worker",)  # the roles that do its items
    most: Few = 4  # items of the list that are done

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Seats that nobody has."""
        for role in (self.planner, *self.workers):
            if role not in roles:
                yield f"team: no agent is called {role!r}{did_you_mean(role, roles)}"

    def answering_role(self, answering: Sequence[str]) -> str:
        """The one that puts the pieces together, where it does nothing else."""
        return "" if answering[-1] in (self.planner, *self.workers) else answering[-1]

    def without(self, roles: Sequence[str]) -> Hierarchical:
        """The workers that are left do all items."""
        return self.model_copy(update={"workers": tuple(role for role in self.workers if role not in roles)})

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        plan = await agents[self.planner](observation)
        parts = sub_tasks(plan.message)[: self.most]
        results = await together(
            *(
                agents[self.workers[number % len(self.workers)]](observation, sees=[Excerpt(plan, part)])
                for number, part in enumerate(parts)
            )
        )
        return JointAction(answer=await answering(agents)(observation, sees=[plan, *results]))


def sub_tasks(text: str) -> list[str]:
    """The items of a list, or the whole text.

    >>> sub_tasks("Plan:\\n1. add\\n2) check")
    ['add', 'check']
    >>> sub_tasks("just add")
    ['just add']
    """
    return [item.strip() for item in _ITEM.findall(text)] or [text.strip()]
