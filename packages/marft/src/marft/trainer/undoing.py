"""A training step that leaves something that is not finite is undone: policies, optimizers and critic are as before it.

Adam divides by what it remembers, so an overflow anywhere would stay for ever; and a checkpoint with NaN in it would be
the newest whole one.
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

MOST_IN_A_ROW = 5  # steps that are undone before a run stops, for nothing would be learned any more


class Before:
    """All that a training step may move, as it was before; kept in the host's memory.

    A step copies each parameter that learns and Adam's two moments of it, 12 bytes a parameter: 44 MB for a LoRA of 3.7
    million, 37 GB for a whole model of 3.1 billion. The memory is taken once and every step writes over it: fresh pages
    cost several times the copy. It is not pinned: that rounds each tensor up to a power of two.
    """

    def __init__(self, learner: Kept) -> None:
        self._learner = learner
        self._buffers: dict[tuple[str, str], Tensor] = {}
        self._kept: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []

    @torch.no_grad()
    def take(self) -> None:
        """Copy everything as it is now."""
        self._kept = [
            (self._copies(who, parameters), self._copies(who, optimizer_tensors(optimizer, parameters)))
            for who, parameters, optimizer in learning_parts(self._learner)
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Undo whatever has been done to the learner since."""
        parts = learning_parts(self._learner)
        for (_, parameters, optimizer), (values, moments) in zip(parts, self._kept, strict=True):
            for name, parameter in parameters.items():
                local(parameter).copy_(values[name])
            put_back(optimizer, parameters, moments)
        for policy in self._learner.optimizers.values():
            policy.settle()

    def _copies(self, who: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """``tensors`` in buffers of their own; Adam's are ``<parameter>.exp_avg`` and so on, and no parameter's."""
        for name, tensor in ((name, local(tensor.detach())) for name, tensor in tensors.items()):
            if (who, name) not in self._buffers:
                self._buffers[who, name] = torch.empty_like(tensor, device="cpu")
            self._buffers[who, name].copy_(tensor)
        return {name: self._buffers[who, name] for name in tensors}


class Careful:
    """A learner whose steps are undone where they leave something that is not finite.

    Args:
        note: told what happened, and what to change.
        ranks: those that learn together: a step is undone by all of them or none.
    """

    def __init__(self, learner: Learner, note: Callable[[str], None], ranks: Ranks = ALONE) -> None:
        self._learner, self._note, self._before = learner, note, Before(learner)
        self.ranks = ranks
        self._taken = -1  # the step before which everything was kept
        self._in_a_row = 0

    def learn(
        self,
        episodes: Sequence[Episode],
        progress: Progress,
        told: Callable[[list[ActionCredit]], None] = lambda _: None,
    ) -> dict[str, float]:
        """One training step → its metrics; ``undone_steps`` counts what was undone.

        Args:
            told: told what was made of each action, unless the step was undone.

        Raises:
            RunError: several steps in a row had to be undone.
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
        """Make everything what it was when a step began, whatever of it was done; nothing where it had not begun.

        Args:
            step: training steps done before it.
        """
        if self._taken == step:
            self._before.restore()


def remedy(learner: Learner, name: str) -> str:
    """What to change where ``name`` did not stay finite; "" of a policy that other ranks hold, which say it."""
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
