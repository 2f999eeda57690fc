"""Count-based world model: frequencies of outcomes for equal histories and actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marft.common.seeds import generator
from marft.config.parts import WorldModelPart
from marft.config.settings import Few
from marft_lab.world_models.interface import Lived, Outcome, Prediction, Situation, WorldModel, disagreement, tallied

Asked = tuple[Situation, str]


class Counts(WorldModelPart):
    """Count-based world model for environments with few distinct texts.

    The model predicts the outcomes of exactly the same history and action, with their frequencies. Its uncertainty is
    the disagreement of a bootstrap ensemble, in which every transition has a Poisson(1) weight per member (Oza and
    Russell 2001). A member has no data about a transition observed n times with probability e⁻ⁿ.
    """

    members: Few = 32  # number of ensemble members

    def fit(self, lived: Sequence[Lived], seed: int) -> WorldModel:
        """Fit the model by counts of observed transitions."""
        rows: dict[Asked, dict[Outcome, int]] = {}
        for (situation, action, outcome), count in tallied(lived).items():
            rows.setdefault((situation, action), {})[outcome] = count
        stream, known = generator(seed, "counts"), dict[Asked, Prediction]()
        for asked, counts in rows.items():
            often = np.array(list(counts.values()), np.float64)  # [O]
            drawn = stream.poisson(often, (self.members, len(often))).astype(np.float64)  # [M, O]
            members = drawn / np.maximum(drawn.sum(1, keepdims=True), 1.0)
            known[asked] = Prediction(tuple(counts), often / often.sum(), disagreement(members))
        return Counted(known)


@dataclass(frozen=True, slots=True)
class Counted:
    """Fitted count-based model, with a prediction per history and action."""

    known: Mapping[Asked, Prediction]

    def predict(self, situation: Situation, action: str) -> Prediction:
        """Return the prediction; without data, an empty prediction with uncertainty 1."""
        return self.known.get((situation, action)) or Prediction()
