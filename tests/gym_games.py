"""Small games of our own, written against the base classes of Gymnasium and PettingZoo."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from pettingzoo import AECEnv, ParallelEnv


class Walk(gymnasium.Env[Any, Any]):
    """From a place that the seed draws to 0; walking out of 0 … 9 is masked."""

    metadata = {"render_modes": []}

    def __init__(self, actions: str = "discrete", size: int = 10) -> None:
        self.observation_space = Dict({"at": Discrete(size), "heat": Box(-1, 1, (2,))})
        spaces = {"discrete": Discrete(2), "shifted": Discrete(2, start=-1), "many": MultiDiscrete([2, 2]),
                  "bits": MultiBinary(1), "box": Box(-1, 1, (1,)), "large": Discrete(1000)}  # fmt: skip
        self.action_space, self.size = spaces[actions], size

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(1, self.size))
        return self._shown(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 1 if np.ravel(action)[0] == 1 else -1
        return (
            self._shown(),
            -1.0 + 10 * (self.at == 0),
            self.at == 0,
            False,
            {**self._info(), "is_success": self.at == 0},
        )

    def _shown(self) -> dict[str, Any]:
        return {"at": self.at, "heat": np.array([self.at / 3, -0.5])}

    def _info(self) -> dict[str, Any]:
        return (
            {"action_mask": np.array([self.at > 0, self.at < self.size - 1])}
            if self.action_space == Discrete(2)
            else {}
        )


def told(observation: Any, env: Any) -> str:
    return f"You are at {observation['at']}."


class Nim(AECEnv[str, Any, Any]):
    """Two take one or two of a heap in turns; whoever takes the last one wins."""

    metadata = {"render_modes": ["ansi"], "name": "nim"}

    def __init__(self, heap: int = 5, render_mode: str | None = None, empty_mask: bool = False) -> None:
        super().__init__()
        self.heap, self.render_mode, self.empty_mask = heap, render_mode, empty_mask
        self.possible_agents = ["player_1", "player_2"]

    def observation_space(self, agent: str) -> Any:
        return Dict({"observation": Discrete(100), "action_mask": Box(0, 1, (2,), np.int8)})

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: object = None) -> None:
        self.agents, self.left, self.agent_selection = self.possible_agents[:], self.heap + (seed or 0) % 3, "player_1"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)
        self.infos = {agent: {} for agent in self.agents}

    def observe(self, agent: str) -> Any:
        mask = np.array([1, self.left >= 2], np.int8) * (0 if self.empty_mask else 1)
        return {"observation": self.left, "action_mask": mask}

    def step(self, action: Any) -> None:
        agent = self.agent_selection
        if self.terminations[agent]:
            self._was_dead_step(action)
            return
        self.left -= action + 1
        other = next(each for each in self.possible_agents if each != agent)
        self._clear_rewards()
        if self.left == 0:
            self.rewards = {agent: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.possible_agents, True)
        self.agent_selection = other
        self._accumulate_rewards()

    def render(self) -> str:
        return "|" * self.left

    def close(self) -> None: ...


class Meeting(ParallelEnv[str, Any, Any]):
    """Three name a day at once until all name the same; the third leaves after the first round."""

    metadata = {"name": "meeting"}

    def __init__(self, rounds: int = 9) -> None:
        self.possible_agents, self.rounds = ["ann", "bob", "cyd"], rounds

    def observation_space(self, agent: str) -> Any:
        return Discrete(3)

    def action_space(self, agent: str) -> Any:
        return Discrete(3)

    def reset(self, seed: int | None = None, options: object = None) -> tuple[Any, Any]:
        self.agents = self.possible_agents[:]
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents)
        met = len(set(actions.values())) == 1
        ended = {agent: met or agent == "cyd" for agent in self.agents}
        rewards = {agent: float(met) for agent in self.agents}
        said = self.agents
        self.rounds -= 1
        if self.rounds == 0:
            self.agents, out = [], dict.fromkeys(said, True)
            shown = {agent: int(actions[agent]) for agent in said}
            return shown, rewards, dict.fromkeys(said, False), out, {agent: {} for agent in said}
        self.agents = [agent for agent in said if not ended[agent]]
        return (
            {agent: int(actions[agent]) for agent in said},
            rewards,
            ended,
            dict.fromkeys(said, False),
            {agent: {} for agent in said},
        )

    def close(self) -> None: ...
