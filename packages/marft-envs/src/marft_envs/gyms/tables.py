"""Common interface to both kinds of PettingZoo environments: turns, observations, rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Table:
    """A PettingZoo game.

    Args:
        env: an AEC environment or a parallel environment.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.in_turns = hasattr(env, "agent_iter")
        self.truncated = False  # True if an agent's game was truncated
        self._seen: Mapping[str, Any] = {}
        self._infos: Mapping[str, Any] = {}

    def begin(self, seed: int) -> None:
        """Start a game."""
        begun = self.env.reset(seed=seed)
        if not self.in_turns:
            self._seen, self._infos = begun

    @property
    def alive(self) -> tuple[str, ...]:
        """Agents still in the game."""
        return tuple(self.env.agents)

    @property
    def acting(self) -> tuple[str, ...]:
        """Agents in turn."""
        if not self.alive:
            return ()
        return (self.env.agent_selection,) if self.in_turns else self.alive

    def seen_by(self, agent: str) -> tuple[Any, Mapping[str, Any]]:
        """Return an agent's observation and info."""
        if self.in_turns:
            return self.env.observe(agent), self.env.infos.get(agent, {})
        return self._seen.get(agent), self._infos.get(agent, {})

    def act(self, actions: Mapping[str, Any]) -> dict[str, float]:
        """Play one round and return each agent's reward."""
        if not self.in_turns:
            self._seen, rewards, ended, cut, self._infos = self.env.step(dict(actions))
            self.truncated |= any(cut.values()) and not any(ended.values())
            return {agent: float(reward) for agent, reward in rewards.items()}
        env = self.env
        ((agent, action),) = actions.items()
        assert agent == env.agent_selection, "one acts at a time"
        env.step(action)
        earned = {name: float(reward) for name, reward in env.rewards.items()}
        self.truncated |= any(env.truncations.values()) and not any(env.terminations.values())
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # removes a finished agent
        return earned
