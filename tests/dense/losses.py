"""The loss of one global minibatch: a loop over its actions, a loop over their decisions (formulas §4, §6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from marft.common.types import Action
from tests.dense.model import Scores

LIMIT = 20.0  # nats: log-ratios are cut here


@dataclass
class Row:
    """A trained action as a phase sees it."""

    action: Action
    old: list[float]  # log-probs of its decisions under π_old
    engine: list[float]  # as they were sampled
    base: list[float]  # under the untuned base
    z: float
    advantages: list[float]  # one at action level, one a decision at token level
    solved: bool
    log_factor: float = 0.0  # of the ratio: that of the policies updated before (A2PO)


@dataclass
class Seen:
    """What a minibatch reports: sums and counts, so that means can be taken over all of them."""

    kl: list[float] = field(default_factory=list)  # k3 from π_old, by decision
    entropies: list[float] = field(default_factory=list)
    clipped: list[float] = field(default_factory=list)  # by unit
    weights: list[float] = field(default_factory=list)  # sampler's correction, by decision
    off: list[float] = field(default_factory=list)  # |π_old − engine|, by decision, where it is first looked at


def exp(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LIMIT, LIMIT).exp()


def k3(old: float, now: float) -> float:
    """Schulman's estimate of KL(old ‖ now) at a sample of old."""
    d = max(-LIMIT, min(LIMIT, now - old))
    return math.expm1(d) - d


def policy_loss(
    rows: Sequence[Row], scores: Sequence[Scores], s: Any, constant_length: int, scale: float
) -> tuple[Tensor, Seen]:
    """Everything that a minibatch is stepped on.

    Args:
        s: ``[algorithm]``.
        constant_length: tokens, where lengths are not to count (Dr. GRPO).
        scale: of the clip (A2PO).
    """
    counts = Counts(rows, pooled=s.denominator == "pooled")
    total, seen = torch.zeros((), dtype=torch.float64), Seen()
    for row, score in zip(rows, scores, strict=True):
        weights = sampler_weights(row, s.sampler_correction)
        seen.weights += weights
        token_weight = counts.token_weight(row, s.resolved_aggregation, constant_length)
        for unit in _units(row, score, s.level, weights):
            term, clipped = surrogate(s.objective, unit, row.log_factor, scale)
            share = 1 / counts.actions(row) if s.level == "action" else token_weight
            total = total + share * unit.weight * term
            seen.clipped.append(clipped)
        for j, (now, entropy) in enumerate(zip(score.log_probs, score.entropies, strict=True)):
            seen.kl.append(k3(row.old[j], now.item()))
            seen.entropies.append(entropy.item())
            total = total - s.entropy_coefficient * token_weight * entropy
            if s.kl.coefficient and s.kl.apply_to == "loss":
                total = total + s.kl.coefficient * token_weight * kl_term(s.kl.estimator, now, row.base[j], row.old[j])
            if row.solved:
                total = total - s.nll_coefficient / counts.successful_tokens(row) * now
        if s.teammate_text.coefficient:
            total = total + _teammates(row, score, s.teammate_text) / max(1, counts.teammate_tokens(row))
    return total, seen


@dataclass
class Unit:
    """A term of the surrogate: an action, or a decision."""

    now: Tensor
    old: float
    sampler: float  # log μ, by the engine
    advantage: float
    weight: float


def _units(row: Row, score: Scores, level: str, weights: Sequence[float]) -> list[Unit]:
    if level == "token":
        return [
            Unit(now, old, mu, a, w)
            for now, old, mu, a, w in zip(score.log_probs, row.old, row.engine, row.advantages, weights, strict=True)
        ]
    now = sum(score.log_probs[1:], score.log_probs[0]) / row.z
    return [Unit(now, sum(row.old) / row.z, sum(row.engine) / row.z, row.advantages[0], weights[0])]


def surrogate(objective: Any, unit: Unit, log_factor: float, scale: float) -> tuple[Tensor, float]:
    """The loss of one unit, and whether a clip keeps it from having a gradient."""
    now, old, advantage = unit.now, unit.old - log_factor, unit.advantage
    if objective.name in ("dppo", "drpo"):
        return _by_distance(objective, now, unit.sampler, advantage)
    ratio = exp(now - old)
    r = ratio.item()
    if objective.name in ("reinforce", "dpo"):  # Williams 1992; of a comparison nothing is one action's alone
        return -advantage * now, 0.0
    if objective.name == "cispo":  # MiniMax-M1, 2025: the weight is cut, the gradient never
        return -min(r, 1 + objective.clip_high) * advantage * now, float(r > 1 + objective.clip_high)
    low, high = 1 - scale * objective.clip, 1 + scale * (objective.clip_high or objective.clip)  # Schulman et al. 2017
    worth, clipped = ratio * advantage, False
    if worth.item() > min(high, max(low, r)) * advantage:
        worth, clipped = torch.tensor(min(high, max(low, r)) * advantage, dtype=torch.float64), True
    if objective.dual_clip and advantage < 0 and worth.item() < objective.dual_clip * advantage:  # Ye et al. 2020
        worth, clipped = torch.tensor(objective.dual_clip * advantage, dtype=torch.float64), True
    return -worth, float(clipped)


def _by_distance(objective: Any, now: Tensor, sampler: float, advantage: float) -> tuple[Tensor, float]:
    """Trust regions in probability: DPPO's mask (Qi et al. 2026) with TV, DRPO's penalty (Yao et al. 2026)."""
    ratio, moved = exp(now - sampler), math.exp(now.item()) - math.exp(sampler)
    if objective.name == "drpo":
        penalty = abs(advantage) * math.exp(sampler) * (ratio - 1) ** 2 / (2 * objective.delta)
        return penalty - ratio * advantage, float(abs(moved) > objective.delta)
    if abs(moved) > (objective.delta or 0.2) and moved * advantage > 0:
        return 0.0 * now, 1.0
    return -ratio * advantage, 0.0


def kl_term(estimator: str, now: Tensor, base: float, old: float) -> Tensor:
    """KL(π ‖ base) at a sampled token, from d = log base − log π (Schulman 2020)."""
    d = (base - now).clamp(-LIMIT, LIMIT)
    if estimator == "k2":
        return d * d / 2
    if estimator == "k3":
        return d.exp() - 1 - d
    return exp(now - old) * (d.exp() - 1 - d)


def sampler_weights(row: Row, s: Any) -> list[float]:
    """min(π_old / μ, C) of each token, or of the action by its product or its geometric mean; 0 outside the band."""
    logs = [old - engine for old, engine in zip(row.old, row.engine, strict=True)]
    if s.level == "none":
        return [1.0] * len(logs)
    if s.level == "action":
        logs = [sum(logs)] * len(logs)
    if s.level == "geometric":
        logs = [sum(logs) / len(logs)] * len(logs)
    weights = []
    for log in logs:
        weight = math.exp(max(-LIMIT, min(LIMIT, log)))
        masked = s.mask_high and not s.mask_low <= weight <= s.mask_high
        weights.append(0.0 if masked else min(weight, s.cap))
    return weights


def _teammates(row: Row, score: Scores, s: Any) -> Tensor:
    """−c · w · A · log π of what teammates wrote in the agent's turn, w = min(π/μ, cap) (LlamaRL, 2025), or, by
    our reading of AIPO, no less than a floor where the advantage is positive, and else 0 below a clip."""
    total, place, written = torch.zeros((), dtype=torch.float64), 0, 0
    for mark in row.action.marks.tolist():
        if mark == 0:
            place += 1
        if mark == 2:
            assert row.action.teammate_log_probs is not None
            now = score.teammates[written]
            leads_to = min(place, len(row.advantages) - 1)  # the agent's own next decision
            weight = exp(now - float(row.action.teammate_log_probs[written])).item()
            if s.weight.name == "bounded" and row.advantages[leads_to] > 0:
                weight = max(weight, s.weight.floor)
            elif s.weight.name == "bounded" and weight < 1 - s.weight.clip:
                weight = 0.0
            weight = min(weight, s.weight.cap)
            total = total - s.coefficient * weight * row.advantages[leads_to] * now
            written += 1
    return total


class Counts:
    """Denominators: of the global minibatch, for each policy, or of all policies together (the paper's 1/(nT))."""

    def __init__(self, rows: Sequence[Row], pooled: bool) -> None:
        self.rows, self.pooled = rows, pooled

    def _match_text(self, row: Row) -> list[Row]:
        return [other for other in self.rows if self.pooled or other.action.policy == row.action.policy]

    def actions(self, row: Row) -> int:
        return len(self._match_text(row))

    def tokens(self, row: Row) -> int:
        return sum(len(other.old) for other in self._match_text(row))

    def successful_tokens(self, row: Row) -> int:
        return sum(len(other.old) for other in self._match_text(row) if other.solved)

    def teammate_tokens(self, row: Row) -> int:
        return sum(mark == 2 for other in self._match_text(row) for mark in other.action.marks.tolist())

    def token_weight(self, row: Row, aggregation: str, constant_length: int) -> float:
        """What one decision of a row weighs."""
        if aggregation == "token-mean":  # DAPO
            return 1 / self.tokens(row)
        if aggregation == "action-mean":  # GRPO: the mean over actions of the mean over their tokens
            return 1 / self.actions(row) / len(row.old)
        if aggregation == "constant-length":  # Dr. GRPO
            return 1 / self.actions(row) / constant_length
        return 1 / self.actions(row)  # the mean over actions of the sum over their tokens
