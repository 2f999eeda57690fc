"""Reference policy for preference pairs: a snapshot of the trained policies, or their untuned base.

The reference of a policy is a float32 copy of its trained parameters, next to its optimizer. It is saved with the
optimizer state, so a resumed run has the same reference. For scoring, the copy temporarily replaces the current
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from marft.common.types import ActionKey, Sample
from marft.models.dtensors import local_shard, shard_like
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.batching import Packing
from marft.trainer.interfaces import Floats
from marft.trainer.objectives.pairs import BASE, NONE, START
from marft.trainer.optimizers import PolicyOptimizer
from marft.trainer.rank_group import Ranks
from marft.trainer.scoring import score_actions

Scores = Mapping[ActionKey, Floats]
PolicyCopies = dict[str, dict[str, Tensor]]


class ReferencePolicy:
    """Reference for the policies trained on this rank.

    Args:
        source: ``start``, ``base``, ``none``, or the folder of a checkpoint.
        refresh: training steps between updates of the reference to the current policies; 0 is never.
        optimizers: optimizer of each policy.
        models: models of the run.
        base_packing: packing for the untuned base.

    Raises:
        ValueError: the folder lacks a policy, or a policy is sharded and cannot load a checkpoint.
    """

    def __init__(
        self,
        source: str,
        refresh: int,
        optimizers: Mapping[str, PolicyOptimizer],
        models: PolicyRegistry,
        base_packing: Packing,
    ) -> None:
        self.source, self.refresh, self.optimizers, self.base_packing = source, refresh, optimizers, base_packing
        self._saved: PolicyCopies = {}
        self._first: PolicyCopies = {}  # parameters from the folder of a checkpoint
        if source not in (START, BASE, NONE):
            self._first = self._saved = self._read_checkpoint(Path(source), models)

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
        return {
            policy: {name: parameter.detach().clone() for name, parameter in optimizer.parameters.items()}
            for policy, optimizer in self.optimizers.items()
        }

    @contextmanager
    def _use_reference(self) -> Iterator[None]:
        current = self._copy_parameters()
        self._load(self._saved)
        try:
            yield
        finally:
            self._load(current)

    @torch.no_grad()
    def _load(self, copies: PolicyCopies) -> None:
        for policy, optimizer in self.optimizers.items():
            for name, parameter in optimizer.parameters.items():
                local_shard(parameter).copy_(local_shard(copies[policy][name]))
            optimizer.sync_weights()

    def _read_checkpoint(self, folder: Path, models: PolicyRegistry) -> PolicyCopies:
        missing = [name for name in self.optimizers if not (folder / "policies" / name).is_dir()]
        if missing:
            raise ValueError(
                f"algorithm.objective.reference: {folder} holds no policy {missing[0]!r}; give the folder of a "
                "checkpoint such as runs/name/checkpoints/step_000050, or 'start' or 'base'"
            )
        if any(models.policies[name].backbone.shards is not None for name in self.optimizers):
            raise ValueError(
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
