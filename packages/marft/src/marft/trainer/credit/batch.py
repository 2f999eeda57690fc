"""Returns minus the KL cost-to-go, optionally whitened over the batch (REINFORCE++: Hu et al. 2025)."""

from __future__ import annotations

import numpy as np

from marft.config.parts import CreditPart
from marft.rewards.groups import EPSILON, compare
from marft.trainer.credit.returns import costs_to_come, earned_returns, to_actions
from marft.trainer.interfaces import CreditInputs, Credits, Floats, split_rows


class Batch(CreditPart):
    """``A_k = R − Σ_{j ≥ k} cost_j`` for decision k of an episode, whitened over the batch.

    Whitening computes ``(A − mean) / std`` over the trained decisions of the batch; ``whiten = false`` keeps A. Costs
    are KL costs in the reward. At token level each token is a decision, as in the paper. The cost-to-go covers the
    whole team, because an agent's message changes later messages of its teammates.
    """

    whiten: bool = True  # scale to mean 0 and standard deviation 1

    def assign(self, inputs: CreditInputs) -> Credits:
        """Return the return-to-go of each decision, whitened over the batch."""
        earned = earned_returns(inputs)
        returns = to_actions(inputs, earned)
        if inputs.costs:
            returns = [whole - costs for whole, costs in zip(returns, costs_to_come(inputs), strict=True)]
        if not self.whiten:
            return Credits(returns)
        _, metrics = compare(earned, [""] * len(earned))
        if metrics["groups_all_equal"] or metrics["groups_of_one"]:  # KL differences are no signal
            return Credits([np.zeros_like(row) for row in returns], metrics=metrics)
        return Credits(_whitened(returns, inputs), groups=["batch"] * len(returns), metrics=metrics)


def _whitened(rows: list[Floats], inputs: CreditInputs) -> list[Floats]:
    trained = [row for row, action in zip(rows, inputs.actions, strict=True) if inputs.trains(action)]
    if not trained:
        return rows
    mine = np.concatenate(trained)
    spread = float(mine.std(ddof=1)) if len(mine) > 1 else 0.0
    return split_rows((np.concatenate(rows) - mine.mean()) / (spread + EPSILON), [len(row) for row in rows])
