"""Debate organization: rounds with messages between neighbors or between all agents."""

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
    """All agents act concurrently, ``rounds`` times. From the second round on, each agent sees its own action and
    its neighbors' actions from the previous round.

    ::

        round 1    a     b     c            hears = "all"
                    ╲ ╱ ╲ ╱ ╲ ╱
        round 2    a     b     c ──▶ vote, or the judge, who sees the last round

    ``hears`` is ``"all"``, ``"ring"`` (the previous and the next agent), or a table of neighbors.
    """

    rounds: Few = 2  # number of rounds
    # visible agents: all, the two neighbors in a ring, or a table of neighbors
    hears: Literal["all", "ring"] | Neighbours = "all"
    judge: str = ""  # role that answers; "" selects the most frequent answer of the last round

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for each unknown role, and for a judge without debaters."""
        table = self.hears if isinstance(self.hears, dict) else {}
        named = [self.judge] * bool(self.judge) + [role for agent, heard in table.items() for role in (agent, *heard)]
        for role in dict.fromkeys(named):
            if role not in roles:
                yield f"team: no agent is called {role!r}{did_you_mean(role, roles)}"
        if len(roles) - bool(self.judge) < 1:
            yield "team: a judge alone has nobody to listen to; add agents who debate"

    def answering_role(self, answering: Sequence[str]) -> str:  # noqa: ARG002
        """Return the judge's role, or "" without a judge."""
        return self.judge

    def without(self, roles: Sequence[str]) -> Debate:
        """Return the organization without some roles.

        Readers of a removed agent inherit its neighbors. Without the judge, the agents vote.
        """
        hears = closed_up(self.hears, roles) if isinstance(self.hears, dict) else self.hears
        return self.model_copy(update={"hears": hears, "judge": "" if self.judge in roles else self.judge})

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
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
        """Return the roles visible to ``role``, itself first."""
        if isinstance(self.hears, dict):
            others: Sequence[str] = self.hears.get(role, ())
        elif self.hears == "all":
            others = speakers
        else:
            index = speakers.index(role)
            others = [speakers[index - 1], speakers[(index + 1) % len(speakers)]]
        return list(dict.fromkeys([role, *others]))
