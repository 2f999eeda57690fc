"""Flex-MG: what is played, and which episode of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from marft.agents.engine import Sampler
from marft.agents.environment import Environment
from marft.agents.live import Live
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.planting import Plant, heard
from marft.agents.rendering import Message, Renderer
from marft.agents.team import Team
from marft.agents.tool_sources import ToolSource
from marft.common.types import Action, ActionKey, Observation, Task


class Watcher(Protocol):
    """Whoever looks on while an episode is played."""

    def observed(self, observation: Observation) -> None: ...

    def asked(self, role: str, read: Sequence[Message]) -> Live | None:
        """An agent is about to act → what hears its action come about, if anything does."""

    def acted(self, action: Action) -> None: ...


@dataclass(frozen=True, slots=True)
class Game:
    """Flex-MG: an environment and a team, with what they need to be played."""

    environment: Environment
    team: Team
    engine: Sampler
    renderer: Renderer
    threads: LoopThreadPool
    seed: int = 0
    max_steps: int = 32
    timeout: float = 60.0  # seconds for each call into the environment
    watcher: Watcher | None = None
    tools: Mapping[str, ToolSource] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Recorded actions, by id, that are served instead of sampled: how an episode is forked, or scored again.

    The session starts under the seed of the episode that ``stream`` and ``sample`` name, so it observes the same: the
    episode fails if an observation, or what an agent sees, is not what was recorded.

    Args:
        origin: name of the episode that is played again.
        at: id of the action that is to be sampled anew; else it is the first that is not served.
        instead_of: the recorded action at the fork: the new one is sampled from what that was sampled from.
        observations: what was observed at each step up to there.
        pause: end with the step in which the first action is sampled anew.
    """

    origin: str
    stream: str
    sample: int
    actions: Mapping[str, Action]
    at: str = ""
    instead_of: Action | None = None
    observations: Sequence[str] = ()
    pause: bool = False

    def recorded(self, name: str) -> Action | None:
        """The recorded action of that id, whether it is served or sampled anew."""
        return self.instead_of if name == self.at else self.actions.get(name)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which episode to play: a task, the pass it belongs to, and its number among the attempts at that task.

    ``messages`` replaces what agents see of each other, by action id: the probe for whether messages matter.
    ``plants`` are texts of somebody else's that agents read with what they are shown, answered and told.
    ``questions`` are those that an agent may ask helpers in one action.
    ``policies`` names, by role, who plays in this episode in place of the agent's own policy: one of a pool.
    """

    task: Task
    stream: str
    sample: int = 0
    messages: Mapping[str, str] = field(default_factory=dict)
    critic_states: bool = False  # whether a critic will read this episode
    replay: Replay | None = None
    policies: Mapping[str, str] = field(default_factory=dict)
    questions: int = 0
    plants: tuple[Plant, ...] = ()

    def key(self, step: int, agent: str = "", call: int = 0) -> ActionKey:
        """The name of an action."""
        return ActionKey(self.stream, self.task.id, self.sample, step, agent, call)

    def heard(self, reader: str, action: Action, text: str) -> str:
        """What an agent hears of an action in which another said ``text``."""
        return heard(reader, action, self.messages.get(action.id, text), self.plants)
