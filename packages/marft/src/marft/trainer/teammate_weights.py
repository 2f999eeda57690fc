"""How much text that somebody else wrote in an agent's turn weighs in the agent's own loss: pure functions of one row a
token, with π the agent's probability of it and μ its author's.

The agent did not sample such text, so what it teaches is off-policy. π/μ alone makes up for that, and where the agent
would hardly write it, which is where there is most to learn, lets nothing through. These are ways between the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from marft.config.parts import TeammateWeightPart
from marft.config.settings import LARGEST, Fraction, NotNegative, Positive
from marft.trainer.interfaces import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from torch import Tensor


class Truncated(TeammateWeightPart):
    """``min(π/μ, cap)``: truncated importance sampling (LlamaRL, 2025)."""

    cap: Annotated[float, Field(gt=0, le=LARGEST)] = 2.0  # the largest weight

    def weigh(self, log_probs: Tensor, author: Tensor, advantages: Tensor) -> Tensor:  # noqa: ARG002
        """The weight of each token, [T]."""
        return _ratio(log_probs, author).clamp(max=self.cap)


class Bounded(TeammateWeightPart):
    """``min(max(π/μ, floor), cap)`` where the advantage is positive; elsewhere ``min(π/μ, cap)``, and 0 where π/μ is
    below ``1 − clip``.

    Our reading of AIPO (arXiv 2605.08401), whose abstract names a tailored importance weight and a clip against the
    bias of off-policy text and against gradients that vanish: what was good is learned however unlikely it was, and
    what was bad is pushed down while the agent is about as likely to write it as its author, as PPO's clip has it with
    the author in the place of the old policy.
    """

    floor: NotNegative = 0.5  # the least weight of what was good; 0: none
    cap: Annotated[float, Field(gt=0, le=LARGEST)] = 2.0  # the largest weight
    clip: Fraction = 0.2  # how far below 1 the ratio of what was bad may be; 1: as far as it likes

    def weigh(self, log_probs: Tensor, author: Tensor, advantages: Tensor) -> Tensor:
        """The weight of each token, [T]."""
        ratio = _ratio(log_probs, author)
        bad = ratio * (ratio >= 1 - self.clip)
        return ratio.clamp(min=self.floor).where(advantages > 0, bad).clamp(max=self.cap)


class Shaped(TeammateWeightPart):
    """``γπ/(π + γ)²``, the derivative of ``π/(π + γ)`` by log π: LUFFY's policy shaping (Yan et al. 2025), in which the
    author counts as sure (μ = 1)."""

    gamma: Positive = 0.1  # the probability that weighs most

    def weigh(self, log_probs: Tensor, author: Tensor, advantages: Tensor) -> Tensor:  # noqa: ARG002
        """The weight of each token, [T]."""
        likely = log_probs.detach().exp()
        return self.gamma * likely / (likely + self.gamma).square()


class Unweighted(TeammateWeightPart):
    """1: every token counts alike, whoever sampled it."""

    def weigh(self, log_probs: Tensor, author: Tensor, advantages: Tensor) -> Tensor:  # noqa: ARG002
        """The weight of each token, [T]."""
        return log_probs.new_ones(log_probs.shape)


def _ratio(log_probs: Tensor, author: Tensor) -> Tensor:
    """π/μ, without a gradient."""
    return (log_probs - author).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
