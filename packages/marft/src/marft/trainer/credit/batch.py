"""Returns minus the KL cost-to-go, optionally whitened over the batch (REINFORCE++: Hu et al. 2025)."""

from __future__ import annotations

import numpy as np
from pydantic import Field

from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput, Floats, split_rows
from marft.rewards.groups import EPSILON, normalize_by_group
from marft.trainer.credit.returns import broadcast_to_actions, costs_to_go, team_rewards


class Batch(Credit):
    """``A_k = R − Σ_{j ≥ k} cost_j`` for decision k of an episode, whitened over the batch.

    Whitening computes ``(A − mean) / std`` over the trained decisions of the batch; ``whiten = false`` keeps A. Costs
    are KL costs in the reward. At token level each token is a decision, as in the paper. The cost-to-go covers the
    whole team, because an agent's message changes later messages of its teammates.
    """

    whiten: bool = Field(default=True, description="scale to mean 0 and standard deviation 1")

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Return the return-to-go of each decision, whitened over the batch."""
        rewards = team_rewards(inputs)
        returns = broadcast_to_actions(inputs, rewards)
        if inputs.costs:
            returns = [team_return - costs for team_return, costs in zip(returns, costs_to_go(inputs), strict=True)]
        if not self.whiten:
            return CreditOutput(returns)
        _, metrics = normalize_by_group(rewards, [""] * len(rewards))
        if metrics["zero_variance_groups"] or metrics["singleton_groups"]:  # KL differences are no signal
            return CreditOutput([np.zeros_like(row) for row in returns], metrics=metrics)
        return CreditOutput(_whiten(returns, inputs), groups=["batch"] * len(returns), metrics=metrics)


def _whiten(rows: list[Floats], inputs: CreditInputs) -> list[Floats]:
    trained = [row for row, action in zip(rows, inputs.actions, strict=True) if inputs.is_trained(action)]
    if not trained:
        return rows
    trained_returns = np.concatenate(trained)
    std = float(trained_returns.std(ddof=1)) if len(trained_returns) > 1 else 0.0
    return split_rows((np.concatenate(rows) - trained_returns.mean()) / (std + EPSILON), [len(row) for row in rows])
