"""Organizations: the order of a team's actions, and the visibility of messages."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from marft.common.types import Action, AgentProfile, JointAction, Normalization, Observation, Task
from marft.config.plugins import Plugin


@dataclass(frozen=True, slots=True)
class MessageOverride:
    """Action passed on with a different text: an excerpt instead of the whole message."""

    action: Action
    text: str


VisibleAction = Action | MessageOverride


class AgentHandle(Protocol):
    """Handle to an agent in one step: ``await agents.coder(observation, sees=[plan])`` requests one decision."""

    @property
    def role(self) -> str:
        """The agent's role."""

    @property
    def profile(self) -> AgentProfile:
        """The agent's profile."""

    async def __call__(
        self, observation: Observation, sees: Sequence[VisibleAction] = (), begins: Action | None = None
    ) -> Action:
        """Act once.

        Args:
            sees: the actions, or excerpts of actions, that this action depends on. The agent sees exactly these, and
                the action records them.
            begins: an action whose text starts the agent's own turn; the agent continues it. Both policies must have
                the same tokenizer.
        """
        ...

    async def choose(
        self,
        observation: Observation,
        options: Sequence[str],
        sees: Sequence[VisibleAction] = (),
        normalisation: Normalization = "tokens",
    ) -> Action:
        """Choose one option by the probability of its text, normalized by Z (TWOSOME).

        The choice is one decision and is trained like any other.

        Raises:
            UserError: ``options`` is empty or contains duplicates.
        """
        ...


class Agents(Protocol):
    """Agent handles of a team: ``agents.planner``, ``agents["planner"]``, or iterate in the recipe's order."""

    def __getitem__(self, role: str) -> AgentHandle: ...

    def __getattr__(self, role: str) -> AgentHandle: ...

    def __iter__(self) -> Iterator[AgentHandle]: ...

    def __len__(self) -> int: ...


class Organization(
    Plugin, ABC, kind="organizations", label="an organization", tag="organization", together=("open", "close")
):
    """Base class for organizations: the dependency function D_t, as ordinary asyncio code.

    An organization with state for one episode (a transcript, the next speaker, a router's attempts) writes :meth:`open`
    and :meth:`close`.
    """

    single_action_each: ClassVar[bool] = False  # every agent acts exactly once per step
    # agents act although it is not their turn; with single_action_each they do in any case
    ignores_turns: ClassVar[bool] = False
    # all or most agents act one after another; a plan expects one request at a time per episode
    acts_in_sequence: ClassVar[bool] = False
    no_step_messages: ClassVar[bool] = False  # agents of the same step do not receive each other's messages
    # the organization writes the agents' prompts itself, without the recipe's prompt format
    writes_prompts: ClassVar[bool] = False
    own_timeout: ClassVar[bool] = False  # the organization itself ensures that a step ends, even if no agent responds

    @abstractmethod
    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one environment step: request actions from agents and select the answer.

        Args:
            observation: observation of the environment.
            agents: handles of the agents that may act in this step.
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

    def answer_only_role(self, candidates: Sequence[str]) -> str:  # noqa: ARG002
        """Return the role whose only action in a step is the answer, so that the answer can be streamed.

        Return "" if the role is not known in advance.

        Args:
            candidates: roles that may answer.
        """
        return ""

    def without_agents(self, roles: Sequence[str]) -> Organization:  # noqa: ARG002
        """Return the organization without some agents; observers of a removed agent inherit its sources."""
        return self
