"""Returns whitened over the whole batch (REINFORCE++: Hu et al. 2025), or as they are (REINFORCE)."""

from __future__ import annotations

from marft.learning.credit.estimator import Estimator
from marft.learning.credit.groups import compare, team_costs, team_returns, to_actions
from marft.learning.interfaces import Credits, Evidence


class Batch(Estimator):
    """``(R − mean) / (std + ε)`` over all episodes of the batch; ``whiten = false`` is the plain return."""

    whiten: bool = True

    def assign(self, evidence: Evidence) -> Credits:
        """See :class:`marft.learning.interfaces.Credit`."""
        returns = team_returns(evidence)
        if not self.whiten:
            return Credits(to_actions(evidence, returns))
        advantages, metrics = compare(returns, [""] * len(returns), costs=team_costs(evidence))
        return Credits(to_actions(evidence, advantages), metrics=metrics)
