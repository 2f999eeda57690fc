"""Flex-MG: the game, and the identity of one episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from marft.agents.loop_threads import LoopThreadPool
from marft.agents.prompt_injection import PromptInjection, inject_message
from marft.agents.prompt_messages import Renderer
from marft.agents.streaming import TokenStream
from marft.agents.team import Team
from marft.common.seeds import derive_seed
from marft.common.types import Action, ActionKey, Observation, Task
from marft.config.interfaces.channel import Message
from marft.config.interfaces.engine import Sampler
from marft.config.interfaces.environment import Environment
from marft.config.interfaces.tools import ToolSource


class EpisodeCallback(Protocol):
    """Observer for an episode in progress."""

    def on_observation(self, observation: Observation) -> None:
        """Receive an observation."""

    def on_request(self, role: str, messages: Sequence[Message]) -> TokenStream | None:
        """Receive an agent's upcoming request and its messages; return a stream for the action's tokens, or None."""

    def on_action(self, action: Action) -> None:
        """Receive a finished action."""


@dataclass(frozen=True, slots=True)
class Game:
    """Flex-MG: an environment and a team, with the components needed to run episodes."""

    environment: Environment
    team: Team
    engine: Sampler
    renderer: Renderer
    threads: LoopThreadPool
    seed: int = 0
    max_steps: int = 32
    timeout: float = 60.0  # timeout of each call into the environment, in seconds
    callback: EpisodeCallback | None = None
    tools: Mapping[str, ToolSource] = field(default_factory=dict)

    def seed_for(self, part: str, attempt: Attempt) -> int:
        """Return the seed of a part of an episode. A replay uses the seed of the replayed episode."""
        origin = attempt.replay or attempt
        return derive_seed(self.seed, part, origin.stream, attempt.task.id, origin.sample)


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Recorded actions by id, served instead of sampling, to fork or rescore an episode.

    The session starts under the seed that ``stream`` and ``sample`` determine, so it gives the same observations.
    The episode fails if an observation, or an agent's input, differs from the record.

    Args:
        origin: name of the replayed episode.
        fork_id: id of the action to sample again. By default, this is the first action that is not served.
        replaced_action: the recorded action at the fork. The new action is sampled from the same prompt.
        observations: recorded observations of the steps up to the fork.
        pause: end with the step that samples the first new action.
    """

    origin: str
    stream: str
    sample: int
    actions: Mapping[str, Action]
    fork_id: str = ""
    replaced_action: Action | None = None
    observations: Sequence[str] = ()
    pause: bool = False

    def recorded_action(self, name: str) -> Action | None:
        """Return the recorded action with this id, whether served or sampled again."""
        return self.replaced_action if name == self.fork_id else self.actions.get(name)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Identity of an episode: a task, its pass and the number of the attempt at the task.

    ``messages`` replaces the messages between agents, by action id: a probe for the effect of messages. ``injections``
    are injected texts that agents read in observations, tool outputs and messages. ``max_helper_calls`` is the number
    of helper calls that an agent may make in one action. ``policies`` names, by role, the policy that replaces the
    agent's own in this episode, such as one from a league pool.
    """

    task: Task
    stream: str
    sample: int = 0
    messages: Mapping[str, str] = field(default_factory=dict)
    record_critic_states: bool = False  # whether a critic will read this episode
    replay: Replay | None = None
    policies: Mapping[str, str] = field(default_factory=dict)
    max_helper_calls: int = 0
    injections: tuple[PromptInjection, ...] = ()

    def key(self, step: int, agent: str = "", call: int = 0) -> ActionKey:
        """Return the key that names an action."""
        return ActionKey(self.stream, self.task.id, self.sample, step, agent, call)

    def receive_text(self, reader: str, action: Action, text: str) -> str:
        """Return the message text that an agent receives from another agent's action."""
        return inject_message(reader, action, self.messages.get(action.id, text), self.injections)
