"""Guard against non-finite numbers: revert a training step that produces them.

Policies, optimizers and critic return to their state before the step. Adam's moments would otherwise keep an overflow
forever, and a checkpoint with NaN would become the newest intact checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from marft.common.errors import RunError
from marft.common.types import ActionCredit, Episode
from marft.models.parts import local
from marft.trainer.interfaces import Progress
from marft.trainer.keeping import CRITIC, Kept, learning_parts, not_finite
from marft.trainer.learner import Learner
from marft.trainer.optimizers import optimizer_tensors, put_back
from marft.trainer.rank_group import ALONE, Ranks

MOST_IN_A_ROW = 5  # consecutive reverted steps before the run stops


class Before:
    """Snapshot in host memory: the trained state before a training step.

    A step copies each trained parameter and Adam's two moments: 12 bytes per parameter. That is 44 MB for a LoRA with
    3.7 million parameters, and 37 GB for a full model with 3.1 billion. The memory is allocated once and overwritten in
    every step, because new pages cost several times as much as the copy. The memory is not pinned: pinning rounds each
    tensor up to a power of two.
    """

    def __init__(self, learner: Kept) -> None:
        self._learner = learner
        self._buffers: dict[tuple[str, str], Tensor] = {}
        self._kept: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []

    @torch.no_grad()
    def take(self) -> None:
        """Copy the current state."""
        self._kept = [
            (self._copies(who, parameters), self._copies(who, optimizer_tensors(optimizer, parameters)))
            for who, parameters, optimizer in learning_parts(self._learner)
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Restore the state from the last :meth:`take`."""
        parts = learning_parts(self._learner)
        for (_, parameters, optimizer), (values, moments) in zip(parts, self._kept, strict=True):
            for name, parameter in parameters.items():
                local(parameter).copy_(values[name])
            put_back(optimizer, parameters, moments)
        for policy in self._learner.optimizers.values():
            policy.settle()

    def _copies(self, who: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Copy ``tensors`` into their buffers; the names of Adam's tensors (``<parameter>.exp_avg``, …) match no
        parameter.
        """
        for name, tensor in ((name, local(tensor.detach())) for name, tensor in tensors.items()):
            if (who, name) not in self._buffers:
                self._buffers[who, name] = torch.empty_like(tensor, device="cpu")
            self._buffers[who, name].copy_(tensor)
        return {name: self._buffers[who, name] for name in tensors}


class Careful:
    """Learner wrapper that reverts steps with non-finite results.

    Args:
        learner: learner to wrap.
        note: callback for warnings, with suggested changes.
        ranks: ranks that train together; all of them revert a step, or none.
    """

    def __init__(self, learner: Learner, note: Callable[[str], None], ranks: Ranks = ALONE) -> None:
        self._learner, self._note, self._before = learner, note, Before(learner)
        self.ranks = ranks
        self._taken = -1  # step of the latest snapshot
        self._in_a_row = 0

    def learn(
        self,
        episodes: Sequence[Episode],
        progress: Progress,
        told: Callable[[list[ActionCredit]], None] = lambda _: None,
    ) -> dict[str, float]:
        """Run one training step → metrics; ``undone_steps`` counts reverted steps.

        Args:
            episodes: scored episodes.
            progress: progress of training.
            told: callback for the credit of each action; not called for a reverted step.

        Raises:
            RunError: several steps in a row were reverted.
        """
        self._before.take()
        self._taken = progress.step
        credits: list[ActionCredit] = []
        metrics = self._learner.learn(episodes, progress, credits.extend)
        broken = list(dict.fromkeys(name for found in self.ranks.gather(not_finite(self._learner)) for name in found))
        if broken:
            self._before.restore()
            self._in_a_row += 1
            what = f"step {progress.step + 1}: {', '.join(broken)} did not stay finite, so the step was undone"
            advice = "; ".join(text for name in broken if (text := remedy(self._learner, name)))
            if self._in_a_row == MOST_IN_A_ROW:
                raise RunError(f"{what}, the {MOST_IN_A_ROW}th in a row. What was saved is whole; {advice}")
            self._note(f"{what}; {advice}")
        else:
            self._in_a_row = 0
            told(credits)
        return metrics | {"undone_steps": float(bool(broken))}

    def undo(self, step: int) -> None:
        """Restore the snapshot taken at the start of a step; no-op if the step had not started.

        Args:
            step: number of training steps before it.
        """
        if self._taken == step:
            self._before.restore()


def remedy(learner: Learner, name: str) -> str:
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
