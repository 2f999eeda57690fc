"""Turn-based organization: the environment decides which agents act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import PrivateAttr

from marft.agents.agents import Agents, Seat
from marft.agents.organizations.joining import together
from marft.common.types import Action, JointAction, Observation, Task
from marft.config.parts import OrganizationPart


class Turns(OrganizationPart):
    """The environment names the agents to act (``Observation.turn``) and their options (``Observation.options``).
    Without a turn, all agents act. Without options, agents write.

    ::

        step 0   observation ──▶ north
        step 1   observation ─┬▶ south
                              └▶ west

    ``sees`` selects the visible actions of other agents: the actions in the last step, all actions since the
    agent's own last action, or none. With none, only the environment informs the agents. Agents that act one after
    another in a step also see the earlier actions of that step.
    """

    order: Literal["together", "one after another"] = "together"  # order of the agents in a step
    # visible actions of others: none, the last step's, or all since the agent's own last action
    sees: Literal["nothing", "last", "since"] = "nothing"

    _done: list[Action] = PrivateAttr(default_factory=list)  # actions of this episode, in request order
    _last: list[Action] = PrivateAttr(default_factory=list)  # actions of the previous step
    # by role: number of actions before and in the step of its last action
    _known: dict[str, int] = PrivateAttr(default_factory=dict)

    def opened(self, task: Task, seed: int) -> Turns:  # noqa: ARG002  no randomness
        """Return a copy with an empty record for one episode."""
        return Turns(order=self.order, sees=self.sees)

    def close(self) -> None:
        """Do nothing: no resources are open."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Request actions from the agents named by the environment."""
        seats = [agents[role] for role in observation.turn] or list(agents)
        given = [self._given(seat.role) for seat in seats]
        if self.order == "together":
            acted = await together(*(asked(seat, observation, seen) for seat, seen in zip(seats, given, strict=True)))
        else:
            acted = []
            for seat, seen in zip(seats, given, strict=True):
                acted.append(await asked(seat, observation, [*seen, *acted]))
        self._done += acted
        self._last = acted
        self._known |= {seat.role: len(self._done) for seat in seats}
        return JointAction()

    def _given(self, role: str) -> list[Action]:
        """Return the visible actions of earlier steps."""
        since = self._done[self._known.get(role, 0) :]
        given = {"nothing": [], "last": self._last, "since": since}[self.sees]
        return [action for action in given if action.agent != role]


async def asked(seat: Seat, observation: Observation, sees: Sequence[Action]) -> Action:
    """Return an agent's action: a choice if the environment gives it options, else text."""
    options = observation.options.get(seat.role)
    return await (seat.choose(observation, options, sees) if options else seat(observation, sees))
