"""The loss of comparisons, which no action has by itself, as a coefficient of each action.

A comparison's loss ℓ needs the log-ratios of all actions on both sides, which may lie in different micro-batches, on
different backbones, on different ranks. So there are two passes: all of them are scored without gradients, and
``g_a = Σ ∂ℓ/∂ log π(a)`` is taken from that in float64; then each action's own loss is ``g_a · log π(a)``, whose
gradient is that of the loss, by the chain rule exactly, however actions are packed. For DPO g is ∓β σ(−z), over Z.

A policy's loss is the mean over the comparisons that hold an action of its own; with ``denominator = "pooled"`` over
all.
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
    """Comparisons, and the samples of their actions: those of a step, or of a global minibatch.

    >>> Compared((), {}).flat()
    []
    """

    comparisons: tuple[Comparison, ...]
    samples: Mapping[ActionKey, Sample]  # in the order of the step's

    @staticmethod
    def of(comparisons: Sequence[Comparison], samples: Sequence[Sample]) -> Compared:
        """Those of ``comparisons`` that hold any of ``samples``."""
        by_key = {sample.action.key: sample for sample in samples}
        held = tuple(pair for pair in comparisons if not by_key.keys().isdisjoint((*pair.better, *pair.worse)))
        wanted = {key for pair in held for key in (*pair.better, *pair.worse)}
        return Compared(held, {key: sample for key, sample in by_key.items() if key in wanted})

    def flat(self, policies: Collection[str] | None = None) -> list[Sample]:
        """The samples, of some policies or of all."""
        return [s for s in self.samples.values() if policies is None or s.action.policy in policies]

    def among(self, policies: Collection[str]) -> Compared:
        """The comparisons that hold an action of these policies, whole."""
        mine = {sample.action.key for sample in self.flat(policies)}
        kept = [pair for pair in self.comparisons if not mine.isdisjoint((*pair.better, *pair.worse))]
        return Compared.of(kept, self.flat())

    def split(self, count: int, seed: int, step: int, epoch: int) -> list[Compared]:
        """``count`` minibatches at most, in an order of their own for each epoch. No comparison is cut, and those of
        each agent are shared out evenly."""
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
        """The samples of some policies, with what makes ``−A log π / Z``, averaged as the learner averages, the loss.

        Args:
            now: log-probs of all samples' decisions under the policies as they are.
            reference: those under the reference.
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
    """What comparisons are made of, in float64. A counts actions, P comparisons, M places of actions in them."""

    log_probs: Tensor  # [A] log π of each action, with gradient
    reference: Tensor  # [A]
    normalisers: Tensor  # [A]
    lengths: Tensor  # [A] decisions
    better: tuple[Tensor, Tensor]  # [M] comparison and action of each place on a better side
    worse: tuple[Tensor, Tensor]
    weights: Tensor  # [P]

    @staticmethod
    def of(compared: Compared, now: Scores, reference: Scores) -> _Sides:
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
        """Log-ratios of actions, over Z, [A]."""
        return (self.log_probs - self.reference) / self.normalisers

    def sums(self, of_actions: Tensor, side: tuple[Tensor, Tensor]) -> Tensor:
        """Numbers of actions, summed over a side, [P]."""
        return of_actions.new_zeros(len(self.weights)).index_add(0, side[0], of_actions[side[1]])

    def inputs(self) -> PairInputs:
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
    """Means over comparisons, before the step: the loss, which side is likelier by its log-ratio, by how much; and what
    of that is each agent's."""
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
