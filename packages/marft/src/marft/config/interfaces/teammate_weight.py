"""Weights of text by other authors in an agent's turn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from marft.config.plugins import Plugin

if TYPE_CHECKING:
    from torch import Tensor


class TeammateWeight(Plugin, ABC, kind="teammate_weights", label="a weight of teammates' text"):
    """Base class for loss weights on text by other authors in an agent's turn; a pure function."""

    @abstractmethod
    def compute_weights(self, log_probs: Tensor, author: Tensor, advantages: Tensor) -> Tensor:
        """Return the weight of each teammate token, shape [T], without gradient.

        Args:
            log_probs: log-probabilities under the policy of the turn's agent, shape [T].
            author: log-probabilities under the author's policy at sampling, shape [T]; 0 if unknown.
            advantages: advantage of the agent's own decision that follows each token, shape [T].
        """
