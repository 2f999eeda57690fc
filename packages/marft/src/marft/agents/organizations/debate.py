"""Rounds of talk, in which everybody hears everybody or its neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Strict

from marft.agents.agents import Agents
from marft.agents.organizations.joining import closed_up, majority, together
from marft.common.types import Action, JointAction, Observation
from marft.config.parts import OrganizationPart
from marft.config.settings import Few, did_you_mean

Neighbours = dict[str, Annotated[tuple[str, ...], Strict(False)]]


class Debate(OrganizationPart):
    """All speak at the same time, ``rounds`` times; from the second round on, each sees what it said itself and what
    those that it hears said in the round before.

    ::

        round 1    a     b     c            hears = "all"
                    ╲ ╱ ╲ ╱ ╲ ╱
        round 2    a     b     c ──▶ vote, or the judge, who sees the last round

    ``hears`` is ``"all"``, ``"ring"`` (the one before and the one after), or a table of neighbours.
    """

    rounds: Few = 2  # of speaking
    hears: Literal["all", "ring"] | Neighbours = "all"  # whom each hears: all, its two neighbours, or those of a table
    judge: str = ""  # the role that answers; "": the most frequent answer of the last round

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Names that are no agents, and a judge without a debate."""
        table = self.hears if isinstance(self.hears, dict) else {}
        named = [self.judge] * bool(self.judge) + [role for agent, heard in table.items() for role in (agent, *heard)]
        for role in dict.fromkeys(named):
            if role not in roles:
                yield f"team: no agent is called {role!r}{did_you_mean(role, roles)}"
        if len(roles) - bool(self.judge) < 1:
            yield "team: a judge alone has nobody to listen to; add agents who debate"

    def answering_role(self, answering: Sequence[str]) -> str:  # noqa: ARG002
        """The judge."""
        return self.judge

    def without(self, roles: Sequence[str]) -> Debate:
        """Who heard one that is gone hears whom that one heard; without a judge they vote."""
        hears = closed_up(self.hears, roles) if isinstance(self.hears, dict) else self.hears
        return self.model_copy(update={"hears": hears, "judge": "" if self.judge in roles else self.judge})

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        speakers = [seat for seat in agents if seat.role != self.judge]
        said: dict[str, Action] = {}
        for _ in range(self.rounds):
            heard = {role: [said[other] for other in self._heard(role, list(said)) if other in said] for role in said}
            spoken = await together(*(seat(observation, sees=heard.get(seat.role, [])) for seat in speakers))
            said = {seat.role: action for seat, action in zip(speakers, spoken, strict=True)}
        if self.judge:
            return JointAction(answer=await agents[self.judge](observation, sees=list(said.values())))
        return JointAction(answer=majority(list(said.values())))

    def _heard(self, role: str, speakers: Sequence[str]) -> list[str]:
        """Whom ``role`` hears, itself first."""
        if isinstance(self.hears, dict):
            others: Sequence[str] = self.hears.get(role, ())
        elif self.hears == "all":
            others = speakers
        else:
            index = speakers.index(role)
            others = [speakers[index - 1], speakers[(index + 1) % len(speakers)]]
        return list(dict.fromkeys([role, *others]))
