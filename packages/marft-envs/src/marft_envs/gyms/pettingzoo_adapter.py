"""Common interface to both kinds of PettingZoo environments: turns, observations, rewards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class PettingZooGame:
    """A PettingZoo game.

    Args:
        env: an AEC environment or a parallel environment.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.turn_based = hasattr(env, "agent_iter")
        self.truncated = False  # True if an agent's game was truncated
        self._observations: Mapping[str, Any] = {}
        self._infos: Mapping[str, Any] = {}

    def reset(self, seed: int) -> None:
        """Start a game."""
        initial = self.env.reset(seed=seed)
        if not self.turn_based:
            self._observations, self._infos = initial

    @property
    def active_agents(self) -> tuple[str, ...]:
        """Agents still in the game."""
        return tuple(self.env.agents)

    @property
    def acting_agents(self) -> tuple[str, ...]:
        """Agents in turn."""
        if not self.active_agents:
            return ()
        return (self.env.agent_selection,) if self.turn_based else self.active_agents

    def observe(self, agent: str) -> tuple[Any, Mapping[str, Any]]:
        """Return an agent's observation and info."""
        if self.turn_based:
            return self.env.observe(agent), self.env.infos.get(agent, {})
        return self._observations.get(agent), self._infos.get(agent, {})

    def step(self, actions: Mapping[str, Any]) -> dict[str, float]:
        """Play one round and return each agent's reward."""
        if not self.turn_based:
            self._observations, rewards, terminations, truncations, self._infos = self.env.step(dict(actions))
            self.truncated |= any(truncations.values()) and not any(terminations.values())
            return {agent: float(reward) for agent, reward in rewards.items()}
        env = self.env
        ((agent, action),) = actions.items()
        assert agent == env.agent_selection, "one acts at a time"
        env.step(action)
        step_rewards = {name: float(reward) for name, reward in env.rewards.items()}
        self.truncated |= any(env.truncations.values()) and not any(env.terminations.values())
        while env.agents and (env.terminations[env.agent_selection] or env.truncations[env.agent_selection]):
            env.step(None)  # removes a finished agent
        return step_rewards
