"""Weights for text by other authors in an agent's turn: pure functions with one row per token.

π is the agent's probability of the token, and μ the author's. The agent did not sample such text, so training on it is
off-policy. The importance weight π/μ corrects for that. It vanishes for tokens that are unlikely under π, although
these tokens have the most to teach. The weights here are compromises between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from marft.config.interfaces.objective import LOG_RATIO_LIMIT
from marft.config.interfaces.teammate_weight import TeammateWeight
from marft.config.settings import MAX_COUNT, Fraction, NonNegative, Positive

if TYPE_CHECKING:
    from torch import Tensor


class Truncated(TeammateWeight):
    """``min(π/μ, cap)``: truncated importance sampling (LlamaRL, 2025)."""

    cap: Annotated[float, Field(gt=0, le=MAX_COUNT)] = Field(default=2.0, description="maximum weight")

    def compute_weights(self, log_probs: Tensor, author: Tensor, advantages: Tensor) -> Tensor:  # noqa: ARG002
        """Return the weight of each token, shape [T]."""
        return _ratio(log_probs, author).clamp(max=self.cap)


class Bounded(TeammateWeight):
    """``min(max(π/μ, floor), cap)`` for positive advantages; else ``min(π/μ, cap)``, or 0 if π/μ < ``1 − clip``.

    This is our reading of AIPO (arXiv 2605.08401). Its abstract names a tailored importance weight and a clip, against
    the bias of off-policy text and against vanishing gradients. Text with a positive advantage is learned even if it
    was unlikely. Text with a negative advantage is made less likely only while π/μ is at least ``1 − clip``. That is
    PPO's clip with the author in place of the old policy.
    """

    floor: NonNegative = Field(default=0.5, description="minimum weight of tokens with a positive advantage; 0: off")
    cap: Annotated[float, Field(gt=0, le=MAX_COUNT)] = Field(default=2.0, description="maximum weight")
    clip: Fraction = Field(
        default=0.2, description="clip width below 1 for tokens without a positive advantage; 1: off"
    )

    def compute_weights(self, log_probs: Tensor, author: Tensor, advantages: Tensor) -> Tensor:
        """Return the weight of each token, shape [T]."""
        ratio = _ratio(log_probs, author)
        bad = ratio * (ratio >= 1 - self.clip)
        return ratio.clamp(min=self.floor).where(advantages > 0, bad).clamp(max=self.cap)


class Shaped(TeammateWeight):
    """``γπ/(π + γ)²``, the derivative of ``π/(π + γ)`` with respect to log π.

    This is LUFFY's policy shaping (Yan et al. 2025), in which the author's probability counts as 1.
    """

    gamma: Positive = Field(default=0.1, description="γ, the probability with the largest weight")

    def compute_weights(self, log_probs: Tensor, author: Tensor, advantages: Tensor) -> Tensor:  # noqa: ARG002
        """Return the weight of each token, shape [T]."""
        probability = log_probs.detach().exp()
        return self.gamma * probability / (probability + self.gamma).square()


class Unweighted(TeammateWeight):
    """1: equal weight for every token."""

    def compute_weights(self, log_probs: Tensor, author: Tensor, advantages: Tensor) -> Tensor:  # noqa: ARG002
        """Return the weight of each token, shape [T]."""
        return log_probs.new_ones(log_probs.shape)


def _ratio(log_probs: Tensor, author: Tensor) -> Tensor:
    """Return π/μ without gradient, with the log-ratio clamped."""
    return (log_probs - author).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
