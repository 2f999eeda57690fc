"""Role-conditioned advantage estimation (SPIRAL: Liu et al. 2025): every role has a running mean of its returns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field, PrivateAttr

from marft.common.types import Task
from marft.config.parts import CreditPart
from marft.config.settings import Names
from marft.trainer.credit.returns import agent_returns
from marft.trainer.interfaces import CreditInputs, Credits


class RAE(CreditPart):
    """``R_i − b_i`` with agent i's baseline from before the batch, then ``b_i ← decay · b_i + (1 − decay) · mean``.

    The first batch that an agent appears in sets its baseline to 0, as the paper does. With ``by`` an agent has a
    baseline for each of the values that tasks have there: for each game, or each side that begins.
    """

    decay: Annotated[float, Field(ge=0, lt=1)] = 0.95  # of the running mean, a batch
    by: Names = ()  # keys of a task's data by which baselines are kept apart

    _baselines: dict[str, float] = PrivateAttr(default_factory=dict)

    @property
    def by_agent(self) -> bool:
        """Every agent has a baseline of its own."""
        return True

    def assign(self, inputs: CreditInputs) -> Credits:
        """What an agent earned, against its running mean. Moves the baselines: once a batch."""
        returns = [
            {agent: (self._goes_by(agent, episode.task), earned) for agent, earned in of_agents.items()}
            for episode, of_agents in zip(inputs.episodes, agent_returns(inputs), strict=True)
        ]
        advantages = [
            earned - self._baselines.get(name, 0.0)
            for episode, of_agents in zip(inputs.episodes, returns, strict=True)
            for name, earned in (of_agents[action.agent] for action in episode.actions)
        ]
        batch: dict[str, list[float]] = {}
        for name, earned in (row for of_agents in returns for row in of_agents.values()):
            batch.setdefault(name, []).append(earned)
        for name in sorted(batch):
            mean = float(np.mean(batch[name]))
            self._baselines[name] = self.decay * self._baselines.get(name, 0.0) + (1.0 - self.decay) * mean
        metrics = {f"agents/{agent}/baseline": b for agent, b in _by_agent(self._baselines).items()}
        return Credits(inputs.spread(np.array(advantages)), metrics=metrics)

    def _goes_by(self, agent: str, task: Task) -> str:
        """What a baseline goes by: the agent and, in JSON, what it is kept apart by."""
        return " ".join(
            [agent, json.dumps([task.data.get(key) for key in self.by], default=str)] if self.by else [agent]
        )

    def state_dict(self) -> dict[str, float]:
        """Baselines by agent; see :class:`marft.trainer.interfaces.Stateful`."""
        return dict(self._baselines)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take up baselines again."""
        self._baselines = dict(state)


def _by_agent(baselines: Mapping[str, float]) -> dict[str, float]:
    """The mean of an agent's baselines."""
    of_agents: dict[str, list[float]] = {}
    for name, baseline in baselines.items():
        of_agents.setdefault(name.partition(" ")[0], []).append(baseline)
    return {agent: float(np.mean(some)) for agent, some in of_agents.items()}
