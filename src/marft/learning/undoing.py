"""A training step that leaves something that is not finite is undone: policies, optimizers and critic are as before it.

Adam divides by what it remembers, so an overflow anywhere would stay for ever; and a checkpoint with NaN in it would be
the newest whole one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from marft.errors import RunError
from marft.learning.interfaces import Progress
from marft.learning.learner import Learner
from marft.learning.optimizers import optimizer_tensors, restore_optimizer
from marft.types import Episode

CRITIC = "critic"
MOST_IN_A_ROW = 5  # steps that are undone before a run stops, for nothing would be learned any more


def not_finite(learner: Learner) -> list[str]:
    """What of all that learns holds a number that is not finite: ``policies.<name>`` or ``critic``.

    Costs one look at every parameter and moment, and one number a policy back from the device.
    """
    return [name for name, parameters, optimizer in _learning(learner) if not _finite(parameters, optimizer)]


class Before:
    """All that a training step may move, as it was before; kept in the host's memory."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._kept = [
            (_copies(parameters), _copies(optimizer_tensors(optimizer, parameters)))
            for _, parameters, optimizer in _learning(learner)
        ]

    @torch.no_grad()
    def restore(self) -> None:
        """Undo whatever has been done to the learner since."""
        for (_, parameters, optimizer), (values, moments) in zip(_learning(self._learner), self._kept, strict=True):
            for name, parameter in parameters.items():
                parameter.copy_(values[name])
            optimizer.state.clear()
            restore_optimizer(optimizer, parameters, moments)


class Careful:
    """A learner whose steps are undone where they leave something that is not finite.

    Args:
        note: told what happened, and what to change.
    """

    def __init__(self, learner: Learner, note: Callable[[str], None]) -> None:
        self._learner, self._note = learner, note
        self._in_a_row = 0

    def learn(self, episodes: Sequence[Episode], progress: Progress) -> dict[str, float]:
        """See :meth:`Learner.learn`; ``undone_steps`` counts what was undone.

        Raises:
            RunError: several steps in a row had to be undone.
        """
        before = Before(self._learner)
        metrics = self._learner.learn(episodes, progress)
        broken = not_finite(self._learner)
        if broken:
            before.restore()
            self._in_a_row += 1
            what = f"step {progress.step + 1}: {', '.join(broken)} did not stay finite, so the step was undone"
            advice = "; ".join(remedy(self._learner, name) for name in broken)
            if self._in_a_row == MOST_IN_A_ROW:
                raise RunError(f"{what}, the {MOST_IN_A_ROW}th in a row. What was saved is whole; {advice}")
            self._note(f"{what}; {advice}")
        else:
            self._in_a_row = 0
        return metrics | {"undone_steps": float(bool(broken))}


def remedy(learner: Learner, name: str) -> str:
    """What to change where ``name`` did not stay finite."""
    if name == CRITIC:
        return f"lower algorithm.critic.learning_rate (now {learner.settings.critic.learning_rate:g})"
    optimizer = learner.optimizers[name.removeprefix("policies.")]
    rate, largest = optimizer.learning_rate, optimizer.settings.max_gradient_norm
    return (
        f"lower {name}.learning_rate or algorithm.optimizer.learning_rate (now {rate:g}), "
        f"algorithm.optimizer.max_gradient_norm (now {largest:g}) or weight_decay"
    )


def _learning(learner: Learner) -> Iterator[tuple[str, dict[str, nn.Parameter], torch.optim.Optimizer]]:
    for name, optimizer in learner.optimizers.items():
        yield f"policies.{name}", optimizer.parameters, optimizer.optimizer
    if learner.critic:
        yield CRITIC, learner.critic.parameters(), learner.critic.optimizer


def _finite(parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> bool:
    moments = optimizer_tensors(optimizer, parameters).values()
    tensors = [tensor.detach() for tensor in (*parameters.values(), *moments) if tensor.numel()]
    return bool(torch.isfinite(get_total_norm(tensors, norm_type=float("inf"), foreach=True)))


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
