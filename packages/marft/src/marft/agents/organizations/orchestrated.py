"""Orchestrated organization: a router chooses the next agent, its visible messages, and the end of the step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field, Strict, field_validator
from pydantic_core import PydanticCustomError

from marft.agents.agents import Agents
from marft.common.types import Action, JointAction, Observation
from marft.config.plugin_types import OrganizationPart
from marft.config.settings import SmallCount, did_you_mean

View = Literal["nothing", "last", "all"]
STOP = "stop"


class Orchestrated(OrganizationPart):
    """A router repeatedly chooses another agent by name, until it chooses stop. Its choices are enumerated actions,
    trained by the team's return like any other action.

    ::

        observation ──▶ router ─┬─▶ solver ──┐
                          ▲     ├─▶ checker ─┤
                          │     └─▶ stop ──▶ the last agent's text is the answer
                          └──────────────────┘

    ``views`` lists the possible views of earlier actions for a called agent. With several views, the router chooses
    one as well. After ``max_calls`` calls the step ends in any case. The router can stop only after the first call.
    """

    router: str = "router"  # role that chooses
    # views of earlier actions that a called agent may get
    views: Annotated[tuple[View, ...], Strict(False), Field(min_length=1)] = ("all",)
    max_calls: SmallCount = 3  # maximum calls in a step
    allow_stop: bool = True  # whether the router may stop earlier

    @field_validator("views")
    @classmethod
    def _check_views(cls, views: tuple[View, ...]) -> tuple[View, ...]:
        if len(set(views)) < len(views):
            raise PydanticCustomError("views", "names a view twice")
        return views

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for a missing router, a router without other agents, or a role named stop."""
        if self.router not in roles:
            yield f"team.router: no agent is called {self.router!r}{did_you_mean(self.router, roles)}"
        elif len(roles) < 2:
            yield "team: a router alone has nobody to call"
        if STOP in roles:
            yield f"agents.{STOP}: that is what the router says to end the step; choose another role"

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        calls = {
            role if len(self.views) == 1 else f"{role}, seeing {view}": (role, view)
            for role in (handle.role for handle in agents if handle.role != self.router)
            for view in self.views
        }
        actions: list[Action] = []
        while len(actions) < self.max_calls:
            options = [*calls, *([STOP] if actions and self.allow_stop else [])]
            chosen = options[0]  # with a single option, no request is needed
            if len(options) > 1:
                chosen = (await agents[self.router].choose(observation, options, sees=actions)).text
            if chosen == STOP:
                break
            role, view = calls[chosen]
            visible = {"nothing": [], "last": actions[-1:], "all": actions}[view]
            actions.append(await agents[role](observation, sees=[*visible]))
        return JointAction(answer=actions[-1])
