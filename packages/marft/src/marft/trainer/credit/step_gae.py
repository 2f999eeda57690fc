"""One advantage per environment step, shared by all its decisions.

Sources: HAPPO (Kuba et al. 2022), MAT (Wen et al. 2022), A2PO (Wang et al. 2023).

``δ_t = r_t + γ V_{t+1} − V_t``, ``Â_t = δ_t + γ λ min(1, ρ_{t+1}) Â_{t+1}``. r_t is the total reward of the team and
its agents in the step. V_t is the value of the step's first decision, or the mean over its decisions. ρ is the change
of the earlier-updated policies in step t + 1; without a correction it is 1. The final value of a truncated episode uses
the agents of the last step: the first agent that decided there, or the mean over its agents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from marft.common.types import Episode
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput, Floats, Values
from marft.config.settings import Fraction


class StepGAE(Credit):
    """GAE over environment steps: ``value = "first"`` as in HAPPO and A2PO, ``"mean"`` as in MAT."""

    needs_critic: ClassVar[bool] = True
    supports_a2po: ClassVar[bool] = True

    value: Literal["first", "mean"] = Field(
        default="first", description="value of a step: its first decision, or the mean"
    )
    gamma_step: Fraction = Field(default=0.99, description="discount between environment steps")
    lambda_step: Fraction = Field(
        default=0.95, description="λ between environment steps; lower values add bias and reduce variance"
    )
    lambda_critic: Fraction = Field(default=1.0, description="λ of the critic's targets; 1: full returns")

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Return the advantage of each environment step for all its decisions."""
        assert inputs.values is not None, "StepGAE reads a critic's values"
        results: dict[str, list[Floats]] = {"advantages": [], "returns": [], "monte_carlo": []}
        first, sizes = 0, inputs.sizes()
        for number, episode in enumerate(inputs.episodes):
            last = first + len(episode.actions)
            values = _step_values(episode, inputs.values.actions[first:last], self.value)
            final = _final_value(episode, inputs.values, number, self.value)
            rewards = _step_rewards(episode, self.gamma_step)
            for k, action in enumerate(episode.actions):
                rewards[action.step] -= inputs.action_kl_cost(first + k)
            traces = dict.fromkeys(values, 1.0)
            if inputs.traces is not None:
                for k in reversed(range(len(episode.actions))):  # equal for all actions of a step
                    traces[episode.actions[k].step] = min(1.0, float(inputs.traces[first + k]))
            decays = {"advantages": self.lambda_step, "returns": self.lambda_critic, "monte_carlo": 1.0}
            for name, decay in decays.items():
                uses_traces = traces if name == "advantages" else dict.fromkeys(traces, 1.0)
                by_step = self._compute_advantages(episode, values, rewards, uses_traces, decay, final)
                for action, size in zip(episode.actions, sizes[first:last], strict=True):
                    base = 0.0 if name == "advantages" else values[action.step]
                    results[name].append(np.full(size, by_step[action.step] + base))
            first = last
        return CreditOutput(results["advantages"], results["returns"], results["monte_carlo"])

    def _compute_advantages(
        self,
        episode: Episode,
        values: dict[int, float],
        rewards: dict[int, float],
        traces: dict[int, float],
        decay: float,
        final_value: float,
    ) -> dict[int, float]:
        """Return Â_t for each step with decisions; other steps only add to the discount."""
        advantages: dict[int, float] = {}
        following, estimate, value, trace = len(episode.transitions), 0.0, final_value, 1.0
        for step in sorted(values, reverse=True):
            gamma = self.gamma_step ** (following - step)
            estimate = rewards[step] + gamma * value - values[step] + gamma * decay * trace * estimate
            advantages[step] = estimate
            following, value, trace = step, values[step], traces[step]
        return advantages


def _step_values(episode: Episode, values: Sequence[Floats], kind: str) -> dict[int, float]:
    by_step: dict[int, list[float]] = {}
    for action, row in zip(episode.actions, values, strict=True):
        by_step.setdefault(action.step, []).extend(float(v) for v in row)
    return {step: rows[0] if kind == "first" else float(np.mean(rows)) for step, rows in by_step.items()}


def _final_value(episode: Episode, values: Values, number: int, kind: str) -> float:
    if kind == "first" or not episode.actions:
        return values.final_value(number)
    last = max(action.step for action in episode.actions)
    agents = dict.fromkeys(action.agent for action in episode.actions if action.step == last)
    return float(np.mean([values.final_value(number, agent) for agent in agents]))


def _step_rewards(episode: Episode, gamma: float) -> dict[int, float]:
    """Return the reward of each step with decisions.

    The discounted reward of a step without decisions goes to the last step with decisions before it.
    """
    action_steps = {action.step for action in episode.actions}
    rewards = dict.fromkeys(action_steps, 0.0)
    latest = None
    for t, transition in enumerate(episode.transitions):
        latest = t if t in action_steps else latest
        if latest is not None:
            reward = transition.reward + sum(transition.agent_rewards.values())
            rewards[latest] += reward * gamma ** (t - latest)
    return rewards
