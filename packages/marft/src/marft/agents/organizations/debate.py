"""Debate organization: rounds with messages between neighbors or between all agents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Strict

from marft.agents.agents import Agents
from marft.agents.organizations.utils import gather_actions, majority_vote, remove_roles
from marft.common.types import Action, JointAction, Observation
from marft.config.plugin_types import OrganizationPart
from marft.config.settings import SmallCount, did_you_mean

Neighbors = dict[str, Annotated[tuple[str, ...], Strict(False)]]


class Debate(OrganizationPart):
    """All agents act concurrently, ``rounds`` times. From the second round on, each agent sees its own action and
    its neighbors' actions from the previous round.

    ::

        round 1    a     b     c            neighbors = "all"
                    ╲ ╱ ╲ ╱ ╲ ╱
        round 2    a     b     c ──▶ vote, or the judge, who sees the last round

    ``neighbors`` is ``"all"``, ``"ring"`` (the previous and the next agent), or a table of neighbors.
    """

    rounds: SmallCount = 2  # number of rounds
    # visible agents: all, the two neighbors in a ring, or a table of neighbors
    neighbors: Literal["all", "ring"] | Neighbors = "all"
    judge: str = ""  # role that answers; "" selects the most frequent answer of the last round

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for each unknown role, and for a judge without debaters."""
        table = self.neighbors if isinstance(self.neighbors, dict) else {}
        named = [self.judge] * bool(self.judge) + [
            role for agent, neighbors in table.items() for role in (agent, *neighbors)
        ]
        for role in dict.fromkeys(named):
            if role not in roles:
                yield f"team: no agent is called {role!r}{did_you_mean(role, roles)}"
        if len(roles) - bool(self.judge) < 1:
            yield "team: a judge alone has nobody to listen to; add agents who debate"

    def answer_role(self, candidates: Sequence[str]) -> str:  # noqa: ARG002
        """Return the judge's role, or "" without a judge."""
        return self.judge

    def without_agents(self, roles: Sequence[str]) -> Debate:
        """Return the organization without some roles.

        Readers of a removed agent inherit its neighbors. Without the judge, the agents vote.
        """
        neighbors = remove_roles(self.neighbors, roles) if isinstance(self.neighbors, dict) else self.neighbors
        return self.model_copy(update={"neighbors": neighbors, "judge": "" if self.judge in roles else self.judge})

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        debaters = [handle for handle in agents if handle.role != self.judge]
        actions: dict[str, Action] = {}
        for _ in range(self.rounds):
            visible = {
                role: [
                    actions[neighbor] for neighbor in self._visible_roles(role, list(actions)) if neighbor in actions
                ]
                for role in actions
            }
            new_actions = await gather_actions(
                *(handle(observation, sees=visible.get(handle.role, [])) for handle in debaters)
            )
            actions = {handle.role: action for handle, action in zip(debaters, new_actions, strict=True)}
        if self.judge:
            return JointAction(answer=await agents[self.judge](observation, sees=list(actions.values())))
        return JointAction(answer=majority_vote(list(actions.values())))

    def _visible_roles(self, role: str, debaters: Sequence[str]) -> list[str]:
        """Return the roles visible to ``role``, itself first."""
        if isinstance(self.neighbors, dict):
            neighbors: Sequence[str] = self.neighbors.get(role, ())
        elif self.neighbors == "all":
            neighbors = debaters
        else:
            index = debaters.index(role)
            neighbors = [debaters[index - 1], debaters[(index + 1) % len(debaters)]]
        return list(dict.fromkeys([role, *neighbors]))
