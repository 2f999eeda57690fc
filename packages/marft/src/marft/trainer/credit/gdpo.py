"""GDPO: each reward term is normalized within its group before the terms are added (Liu et al. 2026).

If several terms are added first, different combinations of them earn the same sum, and GRPO cannot tell them apart. A
term with a large spread also drowns the others. GDPO normalizes each term by itself, adds the results, and normalizes
the sum over the batch, so that its size does not grow with the number of terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from marft.common.types import Episode
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput, Floats
from marft.config.settings import NonEmptyString, NonNegative
from marft.rewards.groups import EPSILON, normalize_by_group
from marft.trainer.credit.returns import broadcast_to_actions, group_names, team_rewards

WHOLE = ""  # the term of an episode whose reward is not composed of terms


class GDPO(Credit):
    """``Σ_k w_k (R_k − mean) / (std + ε)`` over the terms k of a reward, normalized over the batch."""

    comparison_group: ClassVar[Literal["task", ""]] = "task"
    reads_costs: ClassVar[bool] = False

    weights: dict[NonEmptyString, NonNegative] = Field(
        default={}, description="weight of a reward term after its normalization, by name; others have 1"
    )

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Compare each term of an episode's reward with its group, and add the terms."""
        keys = [episode.task.id for episode in inputs.episodes]
        rewards = team_rewards(inputs)
        _, metrics = normalize_by_group(rewards, keys)
        by_term = [
            _term_rewards(episode) or {WHOLE: reward} for episode, reward in zip(inputs.episodes, rewards, strict=True)
        ]
        total = np.zeros(len(rewards))
        for term in sorted({name for terms in by_term for name in terms}):
            values = np.array([terms.get(term, 0.0) for terms in by_term])
            advantages, _ = normalize_by_group(values, keys)
            total += self.weights.get(term, 1.0) * advantages
        groups = group_names(inputs, lambda episode, _: [episode.task.id])
        return CreditOutput(broadcast_to_actions(inputs, _normalize(total)), groups=groups, metrics=metrics)


def _term_rewards(episode: Episode) -> Mapping[str, float]:
    """Return the reward of each term over the episode, those of single agents included; {} without terms."""
    rewards: dict[str, float] = {}
    for transition in episode.transitions:
        for name, reward in transition.terms.items():
            term = name.split("/")[0]
            rewards[term] = rewards.get(term, 0.0) + reward
    return rewards


def _normalize(advantages: Floats) -> Floats:
    """Normalize to mean 0 and deviation 1 over the batch; advantages that are all equal become 0."""
    if len(advantages) < 2:
        return np.zeros_like(advantages)
    normalized: Floats = (advantages - advantages.mean()) / (advantages.std(ddof=1) + EPSILON)
    return normalized
