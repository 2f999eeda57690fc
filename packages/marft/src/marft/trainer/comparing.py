"""Preference pair loss, expressed as coefficients for single actions.

The loss ℓ of a pair needs the log-ratios of all actions on both sides. These actions may be in different micro-batches,
on different backbones, and on different ranks. The computation therefore takes two passes. The first pass scores all
actions without gradient and computes ``g_a = Σ ∂ℓ/∂ log π(a)`` in float64. In the second pass the loss of each action
is ``g_a · log π(a)``. By the chain rule its gradient is exactly that of the pair loss, for any packing.
For DPO, ``g = ∓β σ(−z)``, divided by Z.

A policy's loss is the mean over the pairs with an action of the policy. With ``denominator = "pooled"`` it is the mean
over all pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from marft.common import seeds
from marft.common.types import ActionKey, Sample
from marft.trainer.batching import Denominators
from marft.trainer.interfaces import Comparison, PairInputs
from marft.trainer.metering import Meter
from marft.trainer.objectives.pairs import PairObjective
from marft.trainer.reference import Scores


@dataclass(frozen=True, slots=True, eq=False)
class Compared:
    """Preference pairs and their action samples, for a training step or a global minibatch.

    >>> Compared((), {}).flat()
    []
    """

    comparisons: tuple[Comparison, ...]
    samples: Mapping[ActionKey, Sample]  # in the order of the step's samples

    @staticmethod
    def of(comparisons: Sequence[Comparison], samples: Sequence[Sample]) -> Compared:
        """Return the pairs with at least one of ``samples``, and the samples in these pairs."""
        by_key = {sample.action.key: sample for sample in samples}
        held = tuple(pair for pair in comparisons if not by_key.keys().isdisjoint((*pair.better, *pair.worse)))
        wanted = {key for pair in held for key in (*pair.better, *pair.worse)}
        return Compared(held, {key: sample for key, sample in by_key.items() if key in wanted})

    def flat(self, policies: Collection[str] | None = None) -> list[Sample]:
        """Return the samples, optionally for some policies only."""
        return [s for s in self.samples.values() if policies is None or s.action.policy in policies]

    def among(self, policies: Collection[str]) -> Compared:
        """Return the pairs with an action of the given policies, with both sides complete."""
        mine = {sample.action.key for sample in self.flat(policies)}
        kept = [pair for pair in self.comparisons if not mine.isdisjoint((*pair.better, *pair.worse))]
        return Compared.of(kept, self.flat())

    def split(self, count: int, seed: int, step: int, epoch: int) -> list[Compared]:
        """Split the pairs into at most ``count`` minibatches, shuffled for each epoch.

        Pairs are never cut. Each agent's pairs are distributed evenly.
        """
        parts: list[list[Comparison]] = [[] for _ in range(count)]
        for agent in sorted({pair.agent for pair in self.comparisons}):
            mine = [pair for pair in self.comparisons if pair.agent == agent]
            order = seeds.generator(seed, "comparisons", agent, step, epoch).permutation(len(mine))
            for part, indices in zip(parts, np.array_split(order, count), strict=True):
                part += [mine[i] for i in indices]
        return [Compared.of(part, self.flat()) for part in parts if part]

    def weigh(
        self, objective: PairObjective, now: Scores, reference: Scores, policies: Collection[str], pooled: bool,
        meter: Meter,
    ) -> list[Sample]:  # fmt: skip
        """Return samples with coefficients as advantages, so that ``−A log π / Z`` averages to the pair loss gradient.

        Args:
            objective: objective on pairs.
            now: log-probabilities of all samples' decisions under the current policies.
            reference: log-probabilities under the reference.
            policies: policies to return samples of.
            pooled: True to average over all pairs, instead of each policy's pairs.
            meter: receives the metrics of the pairs.
        """
        sides = _Sides.of(self, now, reference)
        losses = objective.pair_losses(sides.inputs())
        (losses * sides.weights).sum().backward()
        slopes = sides.log_probs.grad
        assert slopes is not None, "a loss of comparisons depends on what is compared"
        _measure(meter, self, sides, losses)
        mine = self.flat(policies)
        actions = Denominators.of(mine, pooled).actions
        counts = {name: len(self.comparisons if pooled else self.among([name]).comparisons) for name in actions}
        found = dict(zip(self.samples, slopes.tolist(), strict=True))
        return [
            replace(sample, advantages=np.array([-found[key] * sample.normaliser * actions[policy] / counts[policy]]))
            for sample in mine
            for key, policy in [(sample.action.key, sample.action.policy)]
        ]


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """Tensors of the pairs, in float64.

    A counts actions, P pairs, and M occurrences of actions in pairs.
    """

    log_probs: Tensor  # [A] log π of each action, with gradient
    reference: Tensor  # [A]
    normalisers: Tensor  # [A]
    lengths: Tensor  # [A] decisions
    better: tuple[Tensor, Tensor]  # [M] pair and action of each occurrence on a better side
    worse: tuple[Tensor, Tensor]
    weights: Tensor  # [P]

    @staticmethod
    def of(compared: Compared, now: Scores, reference: Scores) -> _Sides:
        """Build the tensors from log-probabilities."""
        keys = list(compared.samples)
        row = {key: number for number, key in enumerate(keys)}

        def numbers(of: Callable[[ActionKey], float]) -> Tensor:
            return torch.tensor([of(key) for key in keys], dtype=torch.float64)

        def places(of: Callable[[Comparison], Sequence[ActionKey]]) -> tuple[Tensor, Tensor]:
            found = [(p, row[key]) for p, pair in enumerate(compared.comparisons) for key in of(pair) if key in row]
            pairs, actions = torch.tensor(found, dtype=torch.long).reshape(len(found), 2).unbind(1)
            return pairs, actions

        return _Sides(
            log_probs=numbers(lambda key: float(now[key].sum())).requires_grad_(),
            reference=numbers(lambda key: float(reference[key].sum())),
            normalisers=numbers(lambda key: compared.samples[key].normaliser),
            lengths=numbers(lambda key: float(compared.samples[key].action.decisions)),
            better=places(lambda pair: pair.better),
            worse=places(lambda pair: pair.worse),
            weights=torch.tensor([pair.weight for pair in compared.comparisons], dtype=torch.float64),
        )

    def ratios(self) -> Tensor:
        """Return each action's log-ratio, divided by Z, shape [A]."""
        return (self.log_probs - self.reference) / self.normalisers

    def sums(self, of_actions: Tensor, side: tuple[Tensor, Tensor]) -> Tensor:
        """Sum values of actions over a side of each pair, shape [P]."""
        return of_actions.new_zeros(len(self.weights)).index_add(0, side[0], of_actions[side[1]])

    def inputs(self) -> PairInputs:
        """Return the inputs of the pair loss."""
        ratios = self.ratios()
        length = self.sums(self.lengths, self.better)
        return PairInputs(
            better=self.sums(ratios, self.better),
            worse=self.sums(ratios, self.worse),
            better_log_prob=self.sums(self.log_probs, self.better) / length.clamp(min=1),
            better_length=length,
            worse_length=self.sums(self.lengths, self.worse),
        )


def _measure(meter: Meter, compared: Compared, sides: _Sides, losses: Tensor) -> None:
    """Add means over pairs before the update: loss, accuracy, margin, log-ratios, and the margin by agent."""
    ratios, count = sides.ratios().detach(), len(compared.comparisons)
    better, worse = sides.sums(ratios, sides.better), sides.sums(ratios, sides.worse)
    right = (better > worse).double() + 0.5 * (better == worse).double()
    numbers = {"loss": losses.detach() * sides.weights, "accuracy": right, "margin": better - worse}
    numbers |= {"better_log_ratio": better, "worse_log_ratio": worse}
    for name, tensor in numbers.items():
        meter.add(f"preference/{name}", float(tensor.sum()), count)
    agents = [sample.action.agent for sample in compared.samples.values()]
    for agent in sorted(set(agents)):
        mine = ratios * torch.tensor([other == agent for other in agents], dtype=torch.float64)
        margin = sides.sums(mine, sides.better) - sides.sums(mine, sides.worse)
        acted = sum(pair.agent in ("", agent) for pair in compared.comparisons)
        meter.add(f"agents/{agent}/preference/margin", float(margin.sum()), acted)
