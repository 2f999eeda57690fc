"""Preference pairs: their loss as coefficients for single actions, and their reference policy.

The loss ℓ of a pair needs the log-ratios of all actions on both sides. These actions may be in different micro-batches,
on different backbones, and on different ranks. The computation therefore takes two passes. The first pass scores all
actions without gradient and computes ``g_a = Σ ∂ℓ/∂ log π(a)`` in float64. In the second pass the loss of each action
is ``g_a · log π(a)``. By the chain rule its gradient is exactly that of the pair loss, for any packing.
For DPO, ``g = ∓β σ(−z)``, divided by Z.

A policy's loss is the mean over the pairs with an action of the policy. With ``denominator = "pooled"`` it is the mean
over all pairs.

The reference of a policy is a float32 copy of its trained parameters, next to its optimizer. It is saved with the
optimizer state, so a resumed run has the same reference. For scoring, the copy temporarily replaces the current
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from marft.common import seeds
from marft.common.errors import UserError
from marft.common.types import ActionKey, Sample
from marft.config.interfaces.credit import Comparison, Floats
from marft.config.interfaces.objective import Objective, PairInputs
from marft.models.dtensors import shard_like
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.batching import BatchCounts, Packing, split_shuffled
from marft.trainer.learner_metrics import MetricAccumulator
from marft.trainer.objectives.pairs import BASE, NONE, START, PairObjective
from marft.trainer.optimizers import PolicyOptimizer
from marft.trainer.ranks.interface import Ranks
from marft.trainer.scoring import score_actions

Scores = Mapping[ActionKey, Floats]
PolicyCopies = dict[str, dict[str, Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class PreferenceBatch:
    """Preference pairs and their action samples, for a training step or a global minibatch.

    >>> PreferenceBatch((), {}).flatten()
    []
    """

    comparisons: tuple[Comparison, ...]
    samples: Mapping[ActionKey, Sample]  # in the order of the step's samples

    @staticmethod
    def from_samples(comparisons: Sequence[Comparison], samples: Sequence[Sample]) -> PreferenceBatch:
        """Return the pairs with at least one of ``samples``, and the samples in these pairs."""
        by_key = {sample.action.key: sample for sample in samples}
        sampled_pairs = tuple(pair for pair in comparisons if not by_key.keys().isdisjoint((*pair.better, *pair.worse)))
        pair_keys = {key for pair in sampled_pairs for key in (*pair.better, *pair.worse)}
        return PreferenceBatch(sampled_pairs, {key: sample for key, sample in by_key.items() if key in pair_keys})

    def flatten(self, policies: Collection[str] | None = None) -> list[Sample]:
        """Return the samples, optionally for some policies only."""
        return [s for s in self.samples.values() if policies is None or s.action.policy in policies]

    def select_policies(self, policies: Collection[str]) -> PreferenceBatch:
        """Return the pairs with an action of the given policies, with both sides complete."""
        own_keys = {sample.action.key for sample in self.flatten(policies)}
        own_pairs = [pair for pair in self.comparisons if not own_keys.isdisjoint((*pair.better, *pair.worse))]
        return PreferenceBatch.from_samples(own_pairs, self.flatten())

    def split(self, count: int, seed: int, step: int, epoch: int) -> list[PreferenceBatch]:
        """Split the pairs into at most ``count`` minibatches, shuffled for each epoch.

        Pairs are never cut. Each agent's pairs are distributed evenly.
        """
        parts = split_shuffled(
            self.comparisons,
            count,
            lambda pair: pair.agent,
            lambda agent: seeds.generator(seed, "comparisons", agent, step, epoch),
        )
        return [PreferenceBatch.from_samples(part, self.flatten()) for part in parts]

    def compute_coefficients(
        self,
        objective: PairObjective,
        current: Scores,
        reference: Scores,
        policies: Collection[str],
        pooled: bool,
        accumulator: MetricAccumulator,
    ) -> list[Sample]:
        """Return samples with coefficients as advantages, so that ``−A log π / Z`` averages to the pair loss gradient.

        Args:
            objective: objective on pairs.
            current: log-probabilities of all samples' decisions under the current policies.
            reference: log-probabilities under the reference.
            policies: policies to return samples of.
            pooled: True to average over all pairs, instead of each policy's pairs.
            accumulator: receives the metrics of the pairs.
        """
        sides = _Sides.build(self, current, reference)
        losses = objective.pair_losses(sides.inputs())
        (losses * sides.weights).sum().backward()
        gradients = sides.log_probs.grad
        assert gradients is not None, "a loss of comparisons depends on what is compared"
        _measure(accumulator, self, sides, losses)
        own_samples = self.flatten(policies)
        actions = BatchCounts.from_samples(own_samples, pooled).actions
        counts = {
            name: len(self.comparisons if pooled else self.select_policies([name]).comparisons) for name in actions
        }
        coefficients = dict(zip(self.samples, gradients.tolist(), strict=True))
        samples: list[Sample] = []
        for sample in own_samples:
            coefficient, policy = coefficients[sample.action.key], sample.action.policy
            advantage = -coefficient * sample.normalizer * actions[policy] / counts[policy]
            samples.append(replace(sample, advantages=np.array([advantage])))
        return samples


@dataclass(frozen=True, slots=True, eq=False)
class _Sides:
    """Tensors of the pairs, in float64.

    A counts actions, P pairs, and M occurrences of actions in pairs.
    """

    log_probs: Tensor  # [A] log π of each action, with gradient
    reference: Tensor  # [A]
    normalizers: Tensor  # [A]
    lengths: Tensor  # [A] decisions
    better: tuple[Tensor, Tensor]  # [M] pair and action of each occurrence on a better side
    worse: tuple[Tensor, Tensor]
    weights: Tensor  # [P]

    @staticmethod
    def build(preferences: PreferenceBatch, current: Scores, reference: Scores) -> _Sides:
        """Build the tensors from log-probabilities."""
        keys = list(preferences.samples)
        row = {key: number for number, key in enumerate(keys)}

        def numbers(getter: Callable[[ActionKey], float]) -> Tensor:
            return torch.tensor([getter(key) for key in keys], dtype=torch.float64)

        def places(getter: Callable[[Comparison], Sequence[ActionKey]]) -> tuple[Tensor, Tensor]:
            positions = [
                (p, row[key]) for p, pair in enumerate(preferences.comparisons) for key in getter(pair) if key in row
            ]
            pairs, actions = torch.tensor(positions, dtype=torch.long).reshape(len(positions), 2).unbind(1)
            return pairs, actions

        return _Sides(
            log_probs=numbers(lambda key: float(current[key].sum())).requires_grad_(),
            reference=numbers(lambda key: float(reference[key].sum())),
            normalizers=numbers(lambda key: preferences.samples[key].normalizer),
            lengths=numbers(lambda key: float(preferences.samples[key].action.num_decisions)),
            better=places(lambda pair: pair.better),
            worse=places(lambda pair: pair.worse),
            weights=torch.tensor([pair.weight for pair in preferences.comparisons], dtype=torch.float64),
        )

    def ratios(self) -> Tensor:
        """Return each action's log-ratio, divided by Z, shape [A]."""
        return (self.log_probs - self.reference) / self.normalizers

    def sums(self, action_values: Tensor, side: tuple[Tensor, Tensor]) -> Tensor:
        """Sum values of actions over a side of each pair, shape [P]."""
        return action_values.new_zeros(len(self.weights)).index_add(0, side[0], action_values[side[1]])

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


def _measure(accumulator: MetricAccumulator, preferences: PreferenceBatch, sides: _Sides, losses: Tensor) -> None:
    """Add means over pairs before the update: loss, accuracy, margin, log-ratios, and the margin by agent."""
    ratios, count = sides.ratios().detach(), len(preferences.comparisons)
    better, worse = sides.sums(ratios, sides.better), sides.sums(ratios, sides.worse)
    right = (better > worse).double() + 0.5 * (better == worse).double()
    numbers = {"loss": losses.detach() * sides.weights, "accuracy": right, "margin": better - worse}
    numbers |= {"chosen_log_ratio": better, "rejected_log_ratio": worse}
    for name, tensor in numbers.items():
        accumulator.add(f"preference/{name}", float(tensor.sum()), count)
    agents = [sample.action.agent for sample in preferences.samples.values()]
    for agent in sorted(set(agents)):
        agent_ratios = ratios * torch.tensor([pair_agent == agent for pair_agent in agents])
        margin = sides.sums(agent_ratios, sides.better) - sides.sums(agent_ratios, sides.worse)
        pair_count = sum(pair.agent in ("", agent) for pair in preferences.comparisons)
        accumulator.add(f"agents/{agent}/preference/margin", float(margin.sum()), pair_count)


class ReferencePolicy:
    """Reference for the policies trained on this rank.

    Args:
        objective: objective that selects the reference.
        optimizers: optimizer of each policy.
        models: models of the run.
        base_packing: packing for the untuned base.

    Raises:
        UserError: the objective has no ``pair_losses``, the folder of the reference lacks a policy, or a policy is
            sharded and cannot load a checkpoint.
    """

    def __init__(
        self,
        objective: Objective,
        optimizers: Mapping[str, PolicyOptimizer],
        models: PolicyRegistry,
        base_packing: Packing,
    ) -> None:
        if not isinstance(objective, PairObjective):
            raise UserError(
                f"algorithm.objective: {type(objective).__qualname__} says that it reads pairs, and has no "
                "pair_losses; derive it from marft.trainer.objectives.pairs.PairObjective"
            )
        self.source, self.refresh = objective.reference, objective.refresh
        self.optimizers, self.base_packing = optimizers, base_packing
        self._saved: PolicyCopies = {}
        self._first: PolicyCopies = {}  # parameters from the folder of a checkpoint
        if self.source not in (START, BASE, NONE):
            self._first = self._saved = self._read_checkpoint(Path(self.source), models)

    def begin_step(self, step: int) -> None:
        """Copy the current policies at the start, and then every ``refresh`` steps.

        Args:
            step: number of finished training steps.
        """
        if self.source in (BASE, NONE):
            return
        if not self._saved or (self.refresh and step and step % self.refresh == 0):
            self._saved = self._copy_parameters()

    def scores(self, samples: Sequence[Sample], score: Callable[[Sequence[Sample]], Scores], ranks: Ranks) -> Scores:
        """Return reference log-probabilities per decision, by action key; 0 without a reference.

        Args:
            samples: samples of the actions.
            score: function that scores samples under the current parameters.
            ranks: ranks that share the work.
        """
        if self.source == NONE:
            return {sample.action.key: np.zeros(sample.action.num_decisions) for sample in samples}
        if self.source == BASE:
            return score_actions(self.base_packing.with_fixed_sizes([samples]), samples, ranks)
        with self._use_reference():
            return score(samples)

    def state(self) -> dict[str, Tensor]:
        """Return the copies as ``<policy>/<parameter>``, sharded like the parameters."""
        return {
            f"{policy}/{name}": tensor for policy, tensors in self._saved.items() for name, tensor in tensors.items()
        }

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the copies from unsharded tensors; an empty state resets the reference."""
        self._saved = (
            self._first
            if not state
            else {
                policy: {
                    name: shard_like(state[f"{policy}/{name}"], parameter).to(parameter.device).clone()
                    for name, parameter in optimizer.parameters.items()
                }
                for policy, optimizer in self.optimizers.items()
            }
        )

    def _copy_parameters(self) -> PolicyCopies:
        return {policy: optimizer.copy_parameters() for policy, optimizer in self.optimizers.items()}

    @contextmanager
    def _use_reference(self) -> Iterator[None]:
        current = self._copy_parameters()
        self._load(self._saved)
        try:
            yield
        finally:
            self._load(current)

    def _load(self, copies: PolicyCopies) -> None:
        for policy, optimizer in self.optimizers.items():
            optimizer.load_parameters(copies[policy])

    def _read_checkpoint(self, folder: Path, models: PolicyRegistry) -> PolicyCopies:
        missing = [name for name in self.optimizers if not (folder / "policies" / name).is_dir()]
        if missing:
            raise UserError(
                f"algorithm.objective.reference: {folder} holds no policy {missing[0]!r}; give the folder of a "
                "checkpoint such as runs/name/checkpoints/step_000050, or 'start' or 'base'"
            )
        if any(models.policies[name].backbone.shards is not None for name in self.optimizers):
            raise UserError(
                "algorithm.objective.reference: a checkpoint cannot be read into policies that lie in parts "
                "(training.shard); start from it (--init-from) with reference = 'start'"
            )
        current = self._copy_parameters()
        try:
            for name in self.optimizers:
                models.load_policy(name, folder / "policies" / name)
            return self._copy_parameters()
        finally:
            self._load(current)
