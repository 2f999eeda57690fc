"""Role-conditioned advantage estimation (SPIRAL: Liu et al. 2025): every role has a running mean of its returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import numpy as np
from pydantic import Field, PrivateAttr

from marft.config.parts import CreditPart
from marft.learning.credit.groups import agent_returns
from marft.learning.interfaces import CreditInputs, Credits


class RAE(CreditPart):
    """``R_i − b_i`` with agent i's baseline from before the batch, then ``b_i ← decay · b_i + (1 − decay) · mean``.

    The first batch that an agent appears in sets its baseline to 0, as the paper does.
    """

    decay: Annotated[float, Field(ge=0, lt=1)] = 0.95  # of the running mean, a batch

    _baselines: dict[str, float] = PrivateAttr(default_factory=dict)

    def assign(self, inputs: CreditInputs) -> Credits:
        """What an agent earned, against its running mean. Moves the baselines: once a batch."""
        returns = agent_returns(inputs)
        advantages = [
            returns[number][action.agent] - self._baselines.get(action.agent, 0.0)
            for number, episode in enumerate(inputs.episodes)
            for action in episode.actions
        ]
        for agent in sorted({agent for earned in returns for agent in earned}):
            mean = float(np.mean([earned[agent] for earned in returns if agent in earned]))
            self._baselines[agent] = self.decay * self._baselines.get(agent, 0.0) + (1.0 - self.decay) * mean
        metrics = {f"agents/{agent}/baseline": baseline for agent, baseline in self._baselines.items()}
        return Credits(inputs.spread(np.array(advantages)), metrics=metrics)

    def state_dict(self) -> dict[str, float]:
        """Baselines by agent; see :class:`marft.learning.interfaces.Stateful`."""
        return dict(self._baselines)

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Take up baselines again."""
        self._baselines = dict(state)
