"""Guard against non-finite numbers: revert a training step that produces them.

Policies, optimizers and critic return to their state before the step. Adam's moments would otherwise keep an overflow
forever, and a checkpoint with NaN would become the newest intact checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from marft.common.errors import RunError
from marft.common.log import get_logger
from marft.common.types import ActionCredit, Episode
from marft.config.interfaces.schedule import Progress
from marft.models.devices import copy_together, read_tensors
from marft.models.dtensors import local_shard
from marft.runs.checkpoints import TrainState
from marft.trainer.critic import Critic
from marft.trainer.learner_backend import PlayAgain, refuse_new_episodes
from marft.trainer.optimizers import PolicyOptimizer, optimizer_tensors, restore_moments
from marft.trainer.ranks.interface import SINGLE_RANK, Ranks

if TYPE_CHECKING:
    from marft.trainer.learner import Learner

logger = get_logger(__name__)
CRITIC = "critic"
MAX_CONSECUTIVE = 5  # consecutive reverted steps before the run stops


class LearnerState(TrainState, Protocol):
    """Learner of rewards or turns: :class:`TrainState`, with the types of its optimizers and critic."""

    @property
    def optimizers(self) -> Mapping[str, PolicyOptimizer]:
        """Optimizer of each trained policy, by name."""

    @property
    def critic(self) -> Critic | None:
        """Critic; None without a critic."""


def find_non_finite(learner: LearnerState) -> list[str]:
    """Return the parts with a non-finite number: ``policies.<name>`` or ``critic``.

    The cost is one pass over all parameters and moments, and one number per part, read from the device together.
    """
    parts = [
        (name, _largest_number(parameters, optimizer)) for name, parameters, optimizer in iterate_trained_parts(learner)
    ]
    sizes = read_tensors([size for _, size in parts])
    return [name for (name, _), size in zip(parts, sizes, strict=True) if not np.isfinite(size).all()]


def iterate_trained_parts(
    learner: LearnerState,
) -> Iterator[tuple[str, dict[str, nn.Parameter], torch.optim.Optimizer]]:
    """Yield name, parameters and optimizer for each trained part."""
    for name, optimizer in learner.optimizers.items():
        yield f"policies.{name}", optimizer.parameters, optimizer.optimizer
    if learner.critic:
        yield CRITIC, learner.critic.parameters(), learner.critic.optimizer


@torch.no_grad()
def _largest_number(parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> Tensor:
    """Return the largest absolute value in parameters and moments, on their device; not finite if a number is not.

    Adam counts its steps on the host. Such a count is sent only where it is not finite.
    """
    moments = optimizer_tensors(optimizer, parameters).values()
    tensors = [tensor for tensor in map(local_shard, (*parameters.values(), *moments)) if tensor.numel()]
    device = local_shard(next(iter(parameters.values()))).device
    tensors = [tensor for tensor in tensors if tensor.device == device or not tensor.isfinite().all()]
    return get_total_norm(tensors, norm_type=float("inf"), foreach=True)


class Snapshot:
    """Snapshot in host memory: the trained state before a training step.

    A step copies each trained parameter and Adam's two moments: 12 bytes per parameter. That is 44 MB for a LoRA with
    3.7 million parameters, and 37 GB for a full model with 3.1 billion. The memory is allocated once and overwritten in
    every step, because new pages cost several times as much as the copy. The memory is not pinned: pinning rounds each
    tensor up to a power of two.
    """

    def __init__(self, learner: LearnerState) -> None:
        self._learner = learner
        self._buffers: dict[tuple[str, str], Tensor] = {}
        self._copied: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []

    @torch.no_grad()
    def take(self) -> None:
        """Copy the current state."""
        copies: list[tuple[Tensor, Tensor]] = []
        self._copied = [
            (
                self._buffers_of(part, parameters, copies),
                self._buffers_of(part, optimizer_tensors(optimizer, parameters), copies),
            )
            for part, parameters, optimizer in iterate_trained_parts(self._learner)
        ]
        copy_together([buffer for buffer, _ in copies], [tensor for _, tensor in copies])

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the state from the last :meth:`take`."""
        parts = iterate_trained_parts(self._learner)
        for (_, parameters, optimizer), (values, moments) in zip(parts, self._copied, strict=True):
            for name, parameter in parameters.items():
                local_shard(parameter).copy_(values[name])
            restore_moments(optimizer, parameters, moments)
        for policy in self._learner.optimizers.values():
            policy.sync_weights()

    def _buffers_of(
        self, part: str, tensors: Mapping[str, Tensor], copies: list[tuple[Tensor, Tensor]]
    ) -> dict[str, Tensor]:
        """Return the buffers of ``tensors``, and add the copies to make.

        The names of Adam's tensors (``<parameter>.exp_avg``, …) match no parameter.
        """
        for name, tensor in ((name, local_shard(tensor)) for name, tensor in tensors.items()):
            if (part, name) not in self._buffers:
                self._buffers[part, name] = torch.empty_like(tensor, device="cpu")
            copies.append((self._buffers[part, name], tensor))
        return {name: self._buffers[part, name] for name in tensors}


class NonFiniteGuard:
    """Learner wrapper that reverts steps with non-finite results.

    Args:
        learner: learner to wrap.
        ranks: ranks that train together; all of them revert a step, or none, and the first one logs a warning.
    """

    def __init__(self, learner: Learner, ranks: Ranks = SINGLE_RANK) -> None:
        self._learner, self._snapshot = learner, Snapshot(learner)
        self.ranks = ranks
        self._snapshot_step: int | None = None  # step of the latest snapshot
        self._consecutive = 0

    def resume(self, steps: Sequence[Mapping[str, float]]) -> None:
        """Count the reverted steps at the end of a run that resumes, so that it stops where it would have stopped.

        Args:
            steps: metrics of all steps before.
        """
        healthy = (number for number, metrics in enumerate(reversed(steps)) if not metrics.get("reverted_steps"))
        self._consecutive = next(healthy, len(steps))

    def learn(
        self,
        episodes: Sequence[Episode],
        progress: Progress,
        on_credit: Callable[[list[ActionCredit]], None] = lambda _: None,
        play_again: PlayAgain = refuse_new_episodes,
    ) -> dict[str, float]:
        """Run one training step → metrics; ``reverted_steps`` counts reverted steps.

        Args:
            episodes: scored episodes.
            progress: progress of training.
            on_credit: callback for the credit of each action; not called for a reverted step.
            play_again: function that plays the step's tasks again, for phases that ask for it.

        Raises:
            RunError: several steps in a row were reverted.
        """
        self._snapshot.take()
        self._snapshot_step = progress.step
        credit_records: list[ActionCredit] = []
        metrics = self._learner.learn(episodes, progress, credit_records.extend, play_again)
        broken = list(
            dict.fromkeys(name for names in self.ranks.gather(find_non_finite(self._learner)) for name in names)
        )
        if broken:
            self._snapshot.restore()
            self._consecutive += 1
            problem = f"step {progress.step + 1}: {', '.join(broken)} did not stay finite, so the step was undone"
            suggestions = "; ".join(text for name in broken if (text := suggest_fix(self._learner, name)))
            if self._consecutive == MAX_CONSECUTIVE:
                raise RunError(f"{problem}, the {MAX_CONSECUTIVE}th in a row. What was saved is whole; {suggestions}")
            if self.ranks.rank == 0:
                logger.warning(f"{problem}; {suggestions}")
        else:
            self._consecutive = 0
            on_credit(credit_records)
        return metrics | {"reverted_steps": float(bool(broken))}

    def revert(self, step: int) -> None:
        """Restore the snapshot taken at the start of a step; no-op if the step had not started.

        Args:
            step: number of training steps before it.
        """
        if self._snapshot_step == step:
            self._snapshot.restore()


def suggest_fix(learner: Learner, name: str) -> str:
    """Return a suggested change of settings for the non-finite part ``name``.

    The result is "" for a policy on other ranks, which report it themselves.
    """
    if name == CRITIC:
        return f"lower algorithm.critic.learning_rate (now {learner.settings.critic.learning_rate:g})"
    optimizer = learner.optimizers.get(name.removeprefix("policies."))
    if optimizer is None:
        return ""
    rate, largest = optimizer.learning_rate, optimizer.settings.max_gradient_norm
    return (
        f"lower {name}.learning_rate or algorithm.optimizer.learning_rate (now {rate:g}), "
        f"algorithm.optimizer.max_gradient_norm (now {largest:g}) or weight_decay"
    )
