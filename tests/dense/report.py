"""What a training step did, and what it reports of itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.dense.losses import Seen
from tests.dense.optimizer import Gradients


@dataclass
class Moved:
    """One optimizer step: whose, on which gradients, at which rates."""

    owner: str
    gradients: Gradients  # as clipped
    rates: Mapping[str, float]


@dataclass
class Report:
    moved: list[Moved] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass
class Tally:
    """Of the policies' minibatches."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    stops: int = 0
    accepted: list[float] = field(default_factory=list)
    reached: list[float] = field(default_factory=list)  # k3 of every token, from before its policy's turn to after it
    held: list[float] = field(default_factory=list)  # how far phases have moved, in nats an environment step

    def metrics(self) -> dict[str, float]:
        def mean(values: Sequence[float]) -> float:
            return sum(values) / len(values) if values else math.nan

        found = {
            "kl": mean(self.reached),
            "kl_before_step": mean([x for seen in self.seen for x in seen.kl]),
            "entropy": mean([x for seen in self.seen for x in seen.entropies]),
            "clip_fraction": mean([x for seen in self.seen for x in seen.clipped]),
            "log_prob_difference": mean([x for seen in self.seen for x in seen.off]),
            "sampler_weight": mean([x for seen in self.seen for x in seen.weights]),
            "policy_loss": mean(self.losses),
            "gradient_norm": mean(self.norms),
            "accepted_fraction": mean(self.accepted),
            "kl_stops": float(self.stops),
        }
        if self.held:
            found["team_kl"] = sum(self.held)
        return {name: value for name, value in found.items() if not math.isnan(value)}
