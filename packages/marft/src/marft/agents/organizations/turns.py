"""Those whose turn it is, as the environment says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import PrivateAttr

from marft.agents.agents import Agents, Seat
from marft.agents.organizations.joining import together
from marft.common.types import Action, JointAction, Observation, Task
from marft.config.parts import OrganizationPart


class Turns(OrganizationPart):
    """The environment says whose turn it is (``Observation.turn``), and what they may choose from
    (``Observation.options``); without a turn everybody acts, and without options agents write.

    ::

        step 0   observation ──▶ north
        step 1   observation ─┬▶ south
                              └▶ west

    What an agent sees of the others is what they did in the last step, or all that they did since it acted itself, or
    nothing: then the environment alone tells. Those who act in a step one after another also see those before them.
    """

    order: Literal["together", "one after another"] = "together"  # of those whose turn it is in a step
    sees: Literal["nothing", "last", "since"] = "nothing"  # what others did in the last step, or since it acted itself

    _done: list[Action] = PrivateAttr(default_factory=list)  # in this episode, in the order asked
    _last: list[Action] = PrivateAttr(default_factory=list)  # in the step before
    _known: dict[str, int] = PrivateAttr(default_factory=dict)  # by role: how much was done when it acted last

    def opened(self, task: Task, seed: int) -> Turns:  # noqa: ARG002  nothing here is random
        """One that remembers what is done in an episode."""
        return Turns(order=self.order, sees=self.sees)

    def close(self) -> None:
        """Nothing is held."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """One step of those whose turn it is."""
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
        """What an agent sees of earlier steps."""
        since = self._done[self._known.get(role, 0) :]
        given = {"nothing": [], "last": self._last, "since": since}[self.sees]
        return [action for action in given if action.agent != role]


async def asked(seat: Seat, observation: Observation, sees: Sequence[Action]) -> Action:
    """An agent's action: a choice, where the environment gives it options."""
    options = observation.options.get(seat.role)
    return await (seat.choose(observation, options, sees) if options else seat(observation, sees))
