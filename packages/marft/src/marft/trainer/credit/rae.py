"""Role-conditioned advantage estimation (SPIRAL: Liu et al. 2025): one running mean of returns per role."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field, PrivateAttr

from marft.common.types import Task
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.config.settings import Names
from marft.trainer.credit.returns import agent_returns


class RAE(Credit):
    """``R_i − b_i`` with agent i's baseline before the batch, then ``b_i ← decay · b_i + (1 − decay) · mean``.

    The baseline starts at 0, as in the paper. With ``group_by`` an agent has a separate baseline for each combination
    of the listed task fields. Examples are a baseline per game or per starting side.
    """

    decay: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.95, description="decay of the running mean per batch")
    group_by: Names = Field(default=(), description="fields of task data with separate baselines")

    _baselines: dict[str, float] = PrivateAttr(default_factory=dict)

    @property
    def per_agent(self) -> bool:
        """True: agents have separate baselines."""
        return True

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Compare each agent's return with its baseline, then update the baselines.

        Call it once per batch.
        """
        returns = [
            {agent: (self._baseline_key(agent, episode.task), reward) for agent, reward in agent_rows.items()}
            for episode, agent_rows in zip(inputs.episodes, agent_returns(inputs), strict=True)
        ]
        advantages = [
            reward - self._baselines.get(name, 0.0)
            for episode, agent_rows in zip(inputs.episodes, returns, strict=True)
            for name, reward in (agent_rows[action.agent] for action in episode.actions)
        ]
        batch: dict[str, list[float]] = {}
        for name, reward in (row for agent_rows in returns for row in agent_rows.values()):
            batch.setdefault(name, []).append(reward)
        for name in sorted(batch):
            mean = float(np.mean(batch[name]))
            self._baselines[name] = self.decay * self._baselines.get(name, 0.0) + (1.0 - self.decay) * mean
        metrics = {f"agents/{agent}/baseline": b for agent, b in _mean_by_agent(self._baselines).items()}
        return CreditOutput(inputs.broadcast(np.array(advantages)), metrics=metrics)

    def _baseline_key(self, agent: str, task: Task) -> str:
        """Return the key of a baseline: the agent and, as JSON, the task's values of the ``by`` fields."""
        return " ".join(
            [agent, json.dumps([task.data.get(key) for key in self.group_by], default=str)]
            if self.group_by
            else [agent]
        )

    def state_dict(self) -> dict[str, float]:
        """Return the baselines by key."""
        return dict(self._baselines)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore baselines from :meth:`state_dict`."""
        self._baselines = dict(state)


def _mean_by_agent(baselines: Mapping[str, float]) -> dict[str, float]:
    """Return the mean of each agent's baselines."""
    by_agent: dict[str, list[float]] = {}
    for name, baseline in baselines.items():
        by_agent.setdefault(name.partition(" ")[0], []).append(baseline)
    return {agent: float(np.mean(agent_baselines)) for agent, agent_baselines in by_agent.items()}
