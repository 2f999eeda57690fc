"""One advantage for each environment step, shared by all its decisions (HAPPO: Kuba et al. 2022; MAT: Wen et al. 2022;
A2PO: Wang et al. 2023).

``δ_t = r_t + γ V_{t+1} − V_t``, ``Â_t = δ_t + γ λ min(1, ρ_{t+1}) Â_{t+1}``: r_t is all that the team and its agents
earned in the step, V_t the value of the step's first decision or the mean over its decisions, and ρ (1 without a
correction) how far the policies updated before have moved in step t + 1. The end of a truncated episode is worth what
its last step is read by: the value of the agent that decided first there, or the mean over the agents that did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np

from marft.common.types import Episode
from marft.config.parts import CreditPart
from marft.config.settings import Fraction
from marft.trainer.interfaces import CreditInputs, Credits, Floats, Values


class StepGAE(CreditPart):
    """GAE over environment steps. ``value = "first"`` is HAPPO's and A2PO's, ``"mean"`` is MAT's."""

    needs_critic: ClassVar[bool] = True
    reads_traces: ClassVar[bool] = True

    value: Literal["first", "mean"] = "first"  # of a step: that of its first decision, or the mean
    gamma_step: Fraction = 0.99  # discount from environment step to environment step
    lambda_step: Fraction = 0.95  # bias against variance, as the discount goes
    lambda_critic: Fraction = 1.0  # for the critic's targets; 1: whole returns

    def assign(self, inputs: CreditInputs) -> Credits:
        """The advantage of each environment step, to all that acted in it."""
        assert inputs.values is not None, "StepGAE reads a critic's values"
        results: dict[str, list[Floats]] = {"advantages": [], "returns": [], "monte_carlo": []}
        first, sizes = 0, inputs.sizes()
        for number, episode in enumerate(inputs.episodes):
            last = first + len(episode.actions)
            decayed = {
                "advantages": self.lambda_step, "returns": self.lambda_critic, "monte_carlo": 1.0,
            }  # fmt: skip
            values = _step_values(episode, inputs.values.actions[first:last], self.value)
            final = _final_value(episode, inputs.values, number, self.value)
            rewards = _step_rewards(episode, self.gamma_step)
            for k, action in enumerate(episode.actions):
                rewards[action.step] -= inputs.cost_of(first + k)
            traces = dict.fromkeys(values, 1.0)
            if inputs.traces is not None:
                for k in reversed(range(len(episode.actions))):  # all of a step have the same
                    traces[episode.actions[k].step] = min(1.0, float(inputs.traces[first + k]))
            for name, decay in decayed.items():
                uses_traces = traces if name == "advantages" else dict.fromkeys(traces, 1.0)
                estimates = self._backwards(episode, values, rewards, uses_traces, decay, final)
                for action, size in zip(episode.actions, sizes[first:last], strict=True):
                    base = 0.0 if name == "advantages" else values[action.step]
                    results[name].append(np.full(size, estimates[action.step] + base))
            first = last
        return Credits(results["advantages"], results["returns"], results["monte_carlo"])

    def _backwards(
        self, episode: Episode, values: dict[int, float], rewards: dict[int, float], traces: dict[int, float],
        decay: float, final_value: float,
    ) -> dict[int, float]:  # fmt: skip
        """Â_t for each step with decisions; steps without any are jumped over."""
        estimates: dict[int, float] = {}
        following, estimate, value, trace = len(episode.transitions), 0.0, final_value, 1.0
        for step in sorted(values, reverse=True):
            gamma = self.gamma_step ** (following - step)
            estimate = rewards[step] + gamma * value - values[step] + gamma * decay * trace * estimate
            estimates[step] = estimate
            following, value, trace = step, values[step], traces[step]
        return estimates


def _step_values(episode: Episode, values: Sequence[Floats], kind: str) -> dict[int, float]:
    of_step: dict[int, list[float]] = {}
    for action, row in zip(episode.actions, values, strict=True):
        of_step.setdefault(action.step, []).extend(float(v) for v in row)
    return {step: rows[0] if kind == "first" else float(np.mean(rows)) for step, rows in of_step.items()}


def _final_value(episode: Episode, values: Values, number: int, kind: str) -> float:
    if kind == "first" or not episode.actions:
        return values.final(number)
    last = max(action.step for action in episode.actions)
    agents = dict.fromkeys(action.agent for action in episode.actions if action.step == last)
    return float(np.mean([values.final(number, agent) for agent in agents]))


def _step_rewards(episode: Episode, gamma: float) -> dict[int, float]:
    """What each step with decisions earned; a step without any pays the one before it, discounted."""
    deciding = {action.step for action in episode.actions}
    rewards = dict.fromkeys(deciding, 0.0)
    latest = None
    for t, transition in enumerate(episode.transitions):
        latest = t if t in deciding else latest
        if latest is not None:
            earned = transition.reward + sum(transition.agent_rewards.values())
            rewards[latest] += earned * gamma ** (t - latest)
    return rewards
