"""Turn-based organization: the environment decides which agents act."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import PrivateAttr

from marft.agents.agents import AgentHandle, Agents
from marft.agents.organizations.utils import gather_actions
from marft.common.types import Action, JointAction, Observation, Task
from marft.config.plugin_types import OrganizationPart


class Turns(OrganizationPart):
    """The environment names the agents to act (``Observation.turn``) and their options (``Observation.options``).
    Without a turn, all agents act. Without options, agents write.

    ::

        step 0   observation ──▶ north
        step 1   observation ─┬▶ south
                              └▶ west

    ``visible`` selects the visible actions of other agents: the actions in the last step, all actions since the
    agent's own last action, or none. With none, only the environment informs the agents. Agents that act one after
    another in a step also see the earlier actions of that step.
    """

    order: Literal["simultaneous", "sequential"] = "simultaneous"  # order of the agents in a step
    # visible actions of others: none, the last step's, or all since the agent's own last action
    visible: Literal["none", "last", "since_own_action"] = "none"

    _actions: list[Action] = PrivateAttr(default_factory=list)  # actions of this episode, in request order
    _last_actions: list[Action] = PrivateAttr(default_factory=list)  # actions of the previous step
    # by role: number of actions before and in the step of its last action
    _seen_counts: dict[str, int] = PrivateAttr(default_factory=dict)

    def open(self, task: Task, seed: int) -> Turns:  # noqa: ARG002  no randomness
        """Return a copy with an empty record for one episode."""
        return Turns(order=self.order, visible=self.visible)

    def close(self) -> None:
        """Do nothing: no resources are open."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Request actions from the agents named by the environment."""
        handles = [agents[role] for role in observation.turn] or list(agents)
        visible = [self._visible_actions(handle.role) for handle in handles]
        if self.order == "simultaneous":
            actions = await gather_actions(
                *(request_action(handle, observation, seen) for handle, seen in zip(handles, visible, strict=True))
            )
        else:
            actions = []
            for handle, seen in zip(handles, visible, strict=True):
                actions.append(await request_action(handle, observation, [*seen, *actions]))
        self._actions += actions
        self._last_actions = actions
        self._seen_counts |= {handle.role: len(self._actions) for handle in handles}
        return JointAction()

    def _visible_actions(self, role: str) -> list[Action]:
        """Return the visible actions of earlier steps."""
        since = self._actions[self._seen_counts.get(role, 0) :]
        visible = {"none": [], "last": self._last_actions, "since_own_action": since}[self.visible]
        return [action for action in visible if action.agent != role]


async def request_action(handle: AgentHandle, observation: Observation, sees: Sequence[Action]) -> Action:
    """Return an agent's action: a choice if the environment gives it options, else text."""
    options = observation.options.get(handle.role)
    return await (handle.choose(observation, options, sees) if options else handle(observation, sees))
