"""One face for both kinds of PettingZoo's environments: whose turn it is, what each sees, what a round pays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Table:
    """A game at which agents sit.

    Args:
        env: an AEC environment, or a parallel one.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        self.in_turns = hasattr(env, "agent_iter")
        self.truncated = False  # whether somebody's game was cut off
        self._seen: Mapping[str, Any] = {}
        self._infos: Mapping[str, Any] = {}

    def begin(self, seed: int) -> None:
        """Begin a game."""
        begun = self.env.reset(seed=seed)
        if not self.in_turns:
            self._seen, self._infos = begun

    @property
    def alive(self) -> tuple[str, ...]:
        """Who still plays."""
        return tuple(self.env.agents)

    @property
    def acting(self) -> tuple[str, ...]:
        """Whose turn it is."""
        if not self.alive:
            return ()
        return (self.env.agent_selection,) if self.in_turns else self.alive

    def seen_by(self, agent: str) -> tuple[Any, Mapping[str, Any]]:
        """What an agent observes, and what it is told beside it."""
        if self.in_turns:
            return self.env.observe(agent), self.env.infos.get(agent, {})
        return self._seen.get(agent), self._infos.get(agent, {})

    def act(self, actions: Mapping[str, Any]) -> dict[str, float]:
        """A round of actions → what each agent earned in it."""
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
            env.step(None)  # whoever is out leaves the table
        return earned
