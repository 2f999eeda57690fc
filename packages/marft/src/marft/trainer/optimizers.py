"""One optimizer a policy: AdamW, its learning-rate schedule, gradient clipping, and its state as flat tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from marft.config.algorithm import OptimizerSettings
from marft.models.devices import read_all
from marft.models.masters import Masters
from marft.models.parts import local, part_of, whole

if TYPE_CHECKING:
    from marft.models.pool import Policy

T = TypeVar("T")
HOST = torch.device("cpu")
MASTER = "master"


def rate_at(settings: OptimizerSettings, step: int, steps: int) -> float:
    """The fraction of the learning rate at training step ``step`` of ``steps``: linear warm-up, then the schedule.

    >>> [round(rate_at(OptimizerSettings(schedule="linear", warmup_steps=2), step, 6), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    if settings.schedule == "constant":
        return 1.0
    done = (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
    shape = 1.0 - done if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return settings.final_fraction + (1.0 - settings.final_fraction) * shape


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A policy and its optimizer at one moment."""

    parameters: Sequence[Tensor]
    moments: Mapping[str, Tensor]


class PolicyOptimizer:
    """Steps one policy. Parameters and moments are float32, whatever the base's dtype.

    Args:
        masters: those that the parameters are, which are remembered: what is saved of the policy is their rounding.
        offload: keep the moments in the host's memory, and bring them to the parameters for a step alone.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], settings: OptimizerSettings, learning_rate: float, steps: int,
        masters: Masters | None = None, offload: bool = False,
    ) -> None:  # fmt: skip
        assert parameters, "a trained policy has parameters"
        assert all(parameter.dtype == torch.float32 for parameter in parameters.values())
        self.parameters = dict(parameters)
        self.settings, self.learning_rate, self.steps = settings, learning_rate, steps
        self.masters, self.offload = masters, offload
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            foreach=True,
        )

    @classmethod
    def of(
        cls, policy: Policy, settings: OptimizerSettings, learning_rate: float, steps: int, offload: bool = False
    ) -> PolicyOptimizer:
        """Of all that a policy learns."""
        parameters = policy.parameters()
        return cls(parameters, settings, learning_rate, steps, policy.masters, offload)

    def begin_step(self, step: int) -> float:
        """Set the learning rate of training step ``step`` → the rate."""
        rate = self.learning_rate * rate_at(self.settings, step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def snapshot(self) -> Snapshot:
        """A copy of the parameters, in their order, and of the optimizer's moments; of each what is held here."""
        moments = optimizer_tensors(self.optimizer, self.parameters)
        return Snapshot(
            [local(parameter.detach()).clone() for parameter in self.parameters.values()],
            {name: local(tensor).clone() for name, tensor in moments.items()},
        )

    @torch.no_grad()
    def place_between(self, before: Snapshot, after: Snapshot, fraction: float) -> None:
        """Parameters ``fraction`` of the way from one snapshot to another; moments stay."""
        for parameter, a, b in zip(self.parameters.values(), before.parameters, after.parameters, strict=True):
            local(parameter).copy_(torch.lerp(a, b, fraction))
        self.settle()

    @torch.no_grad()
    def restore(self, snapshot: Snapshot) -> None:
        """Parameters and moments as they were."""
        for parameter, value in zip(self.parameters.values(), snapshot.parameters, strict=True):
            local(parameter).copy_(value)
        self.settle()
        put_back(self.optimizer, self.parameters, snapshot.moments)

    def state(self) -> dict[str, Tensor]:
        """What is remembered, flat: Adam's state, and ``<parameter>.master``; in parts where the parameters are."""
        masters = {f"{name}.{MASTER}": parameter.detach() for name, parameter in self.parameters.items()}
        return optimizer_tensors(self.optimizer, self.parameters) | (masters if self.masters else {})

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Undo :meth:`state`, from tensors that are whole. Masters are taken by parameters that are none, too."""
        restore_optimizer(self.optimizer, self.parameters, tensors)
        self.put_away()
        for name, parameter in self.parameters.items():
            if f"{name}.{MASTER}" in tensors:
                local(parameter).copy_(local(part_of(tensors[f"{name}.{MASTER}"], parameter)))
        self.settle()

    def settle(self) -> None:
        """Have the policy compute with what was written to its parameters."""
        if self.masters:
            self.masters.round()

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def step(self) -> float:
        """Clip, step → the gradient norm before clipping. A gradient that is not finite moves nothing."""
        return step_all([self])[0]

    def clip(self) -> Tensor:
        """Clip the gradient → its norm before, of all ranks' parts."""
        return whole(
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.max_gradient_norm, foreach=True)
        )

    def move_on(self) -> None:
        """Step, on gradients that are clipped."""
        with self._moments_at_hand():
            self.optimizer.step()
        self.settle()

    @contextmanager
    def _moments_at_hand(self) -> Iterator[None]:
        """The moments are where the parameters are, and after that in the host's memory where they are to be there."""
        if not self.offload:
            yield
            return
        for parameter, state in self.optimizer.state.items():
            move(state, local(parameter).device)
        try:
            yield
        finally:
            self.put_away()

    def put_away(self) -> None:
        """Keep the moments in the host's memory, where they are to be there."""
        for state in self.optimizer.state.values() if self.offload else ():
            move(state, HOST)


def step_all(optimizers: Sequence[PolicyOptimizer]) -> list[float]:
    """As :meth:`PolicyOptimizer.step`, one after the other; their norms are read at once."""
    norms = [float(norm[0]) for norm in read_all([optimizer.clip() for optimizer in optimizers])]
    for optimizer, norm in zip(optimizers, norms, strict=True):
        if math.isfinite(norm):
            optimizer.move_on()
    return norms


def move(state: dict[str, Tensor], device: torch.device) -> None:
    """Move Adam's moments of a parameter; its count of steps is in the host's memory anyway."""
    for key in ("exp_avg", "exp_avg_sq"):
        if key in state:
            state[key] = state[key].to(device)


def under(state: Mapping[str, T], part: str) -> dict[str, T]:
    """What is kept under a part's name, by names without it.

    >>> under({"a/b/step": 1, "a/c/step": 2}, "a/b")
    {'step': 1}
    """
    return {name.removeprefix(f"{part}/"): value for name, value in state.items() if name.startswith(f"{part}/")}


def optimizer_tensors(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """An Adam optimizer's state, flat: ``<parameter>.exp_avg``, ``.exp_avg_sq``, ``.step``."""
    return {
        f"{name}.{key}": value
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]
) -> None:
    """Undo :func:`optimizer_tensors`, from tensors that are whole. A parameter without entries had not been stepped
    yet, and is so again."""
    for name, parameter in parameters.items():
        prefix = f"{name}."
        state = {
            key[len(prefix) :]: tensor
            for key, tensor in tensors.items()
            if key.startswith(prefix) and key[len(prefix) :] in ("step", "exp_avg", "exp_avg_sq")
        }
        optimizer.state.pop(parameter, None)
        if state:
            optimizer.state[parameter] = {
                key: tensor.clone() if key == "step" else part_of(tensor, parameter).to(parameter.device).clone()
                for key, tensor in state.items()
            }


@torch.no_grad()
def put_back(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], moments: Mapping[str, Tensor]
) -> None:
    """Make an optimizer's moments what they were, from copies of what was held here; see :func:`restore_optimizer`."""
    for name, parameter in parameters.items():
        state = optimizer.state.get(parameter, {})
        if not any(f"{name}.{key}" in moments for key in state):
            optimizer.state.pop(parameter, None)
            continue
        for key, tensor in state.items():
            local(tensor).copy_(moments[f"{name}.{key}"])
