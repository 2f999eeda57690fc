"""Organizations: the order of a team's actions, and the visibility of messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from marft.common.types import JointAction, Observation, Task
from marft.config.plugins import Plugin


class Organization(
    Plugin, ABC, kind="organizations", label="an organization", tag="organization", together=("open", "close")
):
    """Base class for organizations: the dependency function D_t, as ordinary asyncio code.

    An organization with state for one episode (a transcript, the next speaker, a router's attempts) writes :meth:`open`
    and :meth:`close`.
    """

    single_action_each: ClassVar[bool] = False  # every agent acts exactly once per step
    # the organization writes the agents' prompts itself, without the recipe's prompt format
    writes_prompts: ClassVar[bool] = False
    own_timeout: ClassVar[bool] = False  # the organization itself ensures that a step ends, even if no agent responds

    @abstractmethod
    async def act(self, observation: Observation, agents: Any) -> JointAction:
        """Run one environment step: request actions from agents and select the answer.

        Args:
            observation: observation of the environment.
            agents: handles of the agents that may act in this step (:class:`marft.agents.agents.Agents`).
        """

    def open(self, task: Task, seed: int) -> Organization:  # noqa: ARG002
        """Return the organization for one episode; default: this one, without state.

        A fork's organization opens under the same seed and acts again on the recorded actions, which restores its
        state.
        """
        return self

    def close(self) -> None:
        """Release the state of the episode, at its end."""
        return

    @property
    def grades_answers(self) -> bool:
        """True if the organization itself rewards an answer."""
        return False

    def answer_role(self, candidates: Sequence[str]) -> str:  # noqa: ARG002
        """Return the role whose only action in a step is the answer, so that the answer can be streamed.

        Return "" if the role is not known in advance.

        Args:
            candidates: roles that may answer.
        """
        return ""

    def without_agents(self, roles: Sequence[str]) -> Organization:  # noqa: ARG002
        """Return the organization without some agents; observers of a removed agent inherit its sources."""
        return self
