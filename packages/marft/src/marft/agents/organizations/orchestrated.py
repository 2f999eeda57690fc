"""A router that chooses who acts next, what it sees, and when to stop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field, Strict, field_validator
from pydantic_core import PydanticCustomError

from marft.agents.agents import Agents
from marft.common.types import Action, JointAction, Observation
from marft.config.parts import OrganizationPart
from marft.config.settings import Few, did_you_mean

View = Literal["nothing", "last", "all"]
STOP = "stop"


class Orchestrated(OrganizationPart):
    """The router chooses one of the others by name, who acts and comes back to it, until the router says stop. Its
    choices are enumerated actions: trained, like any other action, by what the team earns.

    ::

        observation ──▶ router ─┬─▶ solver ──┐
                          ▲     ├─▶ checker ─┤
                          │     └─▶ stop ──▶ the last one's text is the answer
                          └──────────────────┘

    ``views`` is what a called agent may be shown of what the others said; with several the router chooses that too.
    After ``most`` calls the game is over whatever it says; it can only stop once somebody has acted.
    """

    router: str = "router"  # the role that chooses
    # what a called agent may be shown of the others
    views: Annotated[tuple[View, ...], Strict(False), Field(min_length=1)] = ("all",)
    most: Few = 3  # calls in a step
    stops: bool = True  # whether the router may stop before

    @field_validator("views")
    @classmethod
    def _each_once(cls, views: tuple[View, ...]) -> tuple[View, ...]:
        if len(set(views)) < len(views):
            raise PydanticCustomError("views", "names a view twice")
        return views

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """A router that is not there, or alone."""
        if self.router not in roles:
            yield f"team.router: no agent is called {self.router!r}{did_you_mean(self.router, roles)}"
        elif len(roles) < 2:
            yield "team: a router alone has nobody to call"
        if STOP in roles:
            yield f"agents.{STOP}: that is what the router says to end the step; choose another role"

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        calls = {
            role if len(self.views) == 1 else f"{role}, seeing {view}": (role, view)
            for role in (seat.role for seat in agents if seat.role != self.router)
            for view in self.views
        }
        done: list[Action] = []
        while len(done) < self.most:
            options = [*calls, *([STOP] if done and self.stops else [])]
            chosen = options[0]  # where there is nothing to choose, nobody is asked
            if len(options) > 1:
                chosen = (await agents[self.router].choose(observation, options, sees=done)).text
            if chosen == STOP:
                break
            role, view = calls[chosen]
            shown = {"nothing": [], "last": done[-1:], "all": done}[view]
            done.append(await agents[role](observation, sees=[*shown]))
        return JointAction(answer=done[-1])
