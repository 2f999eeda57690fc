"""A world model that has seen it before: how often what came of the same words in the same situation."""

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
    """For worlds of few texts: what came of exactly the same before, as often as it did. It knows nothing else.

    Its uncertainty is the disagreement of an ensemble of bootstraps, each of which has lived every step as often as
    Poisson(1) says (Oza and Russell 2001): what was lived n times a member knows nothing of with probability e⁻ⁿ.
    """

    members: Few = 32  # of the ensemble

    def fit(self, lived: Sequence[Lived], seed: int) -> WorldModel:
        """Count what was lived."""
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
    """What is known of each question."""

    known: Mapping[Asked, Prediction]

    def predict(self, situation: Situation, action: str) -> Prediction:
        return self.known.get((situation, action)) or Prediction()
