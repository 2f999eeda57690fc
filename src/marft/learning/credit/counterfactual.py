"""A counterfactual baseline in the manner of COMA (Foerster et al. 2018), without a critic: what would the team have
earned had this agent acted otherwise here, and everybody after it gone on from there?"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from marft.learning.credit.estimator import Estimator
from marft.learning.credit.groups import team_returns
from marft.learning.interfaces import Credits, Evidence
from marft.types import Fork


class Counterfactual(Estimator):
    """``R − mean R`` of re-samples of this one action, everything after it sampled anew. An action none of whose
    re-samples could be scored gets 0 and is counted."""

    forks: ClassVar[Literal["tree", "counterfactual", "cross", ""]] = "counterfactual"

    resamples: Annotated[int, Field(ge=1)] = 2

    def assign(self, evidence: Evidence) -> Credits:
        """See :class:`marft.learning.interfaces.Credit`."""
        returns = team_returns(evidence)
        others: dict[Fork, list[float]] = {}
        for episode, earned in zip(evidence.episodes, returns, strict=True):
            if episode.fork is not None:
                others.setdefault(episode.fork, []).append(float(earned))
        advantages, trained, lone = [], [], 0
        for episode, earned in zip(evidence.episodes, returns, strict=True):
            for action in episode.actions:
                mine = episode.fork is None
                baseline = others.get(Fork(episode.name, action.id)) if mine else None
                lone += mine and baseline is None
                advantages.append(earned - float(np.mean(baseline)) if baseline else 0.0)
                trained.append(mine)
        return Credits(evidence.spread(np.array(advantages)), trained=trained, metrics={"groups_of_one": float(lone)})
