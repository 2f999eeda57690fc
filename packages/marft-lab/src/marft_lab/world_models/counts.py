"""Count-based world model: frequencies of outcomes for equal histories and actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from marft.common.seeds import generator
from marft.config.settings import SmallCount
from marft_lab.world_models.interface import (
    FittableModel,
    History,
    ObservedTransition,
    Outcome,
    Prediction,
    WorldModel,
    count_transitions,
    ensemble_disagreement,
)

HistoryAction = tuple[History, str]


class CountModel(FittableModel):
    """Count-based world model for environments with few distinct texts.

    The model predicts the outcomes of exactly the same history and action, with their frequencies. Its uncertainty is
    the disagreement of a bootstrap ensemble, in which every transition has a Poisson(1) weight per member (Oza and
    Russell 2001). A member has no data about a transition observed n times with probability e⁻ⁿ.
    """

    members: SmallCount = Field(default=32, description="number of ensemble members")

    def fit(self, transitions: Sequence[ObservedTransition], seed: int) -> WorldModel:
        """Fit the model by counts of observed transitions."""
        rows: dict[HistoryAction, dict[Outcome, int]] = {}
        for (history, action, outcome), count in count_transitions(transitions).items():
            rows.setdefault((history, action), {})[outcome] = count
        stream, predictions = generator(seed, "counts"), dict[HistoryAction, Prediction]()
        for key, counts in rows.items():
            frequencies = np.array(list(counts.values()), np.float64)  # [O]
            sampled = stream.poisson(frequencies, (self.members, len(frequencies))).astype(np.float64)  # [M, O]
            members = sampled / np.maximum(sampled.sum(1, keepdims=True), 1.0)
            predictions[key] = Prediction(
                tuple(counts), frequencies / frequencies.sum(), ensemble_disagreement(members)
            )
        return FittedCountModel(predictions)


@dataclass(frozen=True, slots=True)
class FittedCountModel:
    """Fitted count-based model, with a prediction per history and action."""

    predictions: Mapping[HistoryAction, Prediction]

    def predict(self, history: History, action: str) -> Prediction:
        """Return the prediction; without data, an empty prediction with uncertainty 1."""
        return self.predictions.get((history, action)) or Prediction()
