"""Policy optimizers: AdamW, learning-rate schedule, gradient clipping, and state as flat tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, assert_never

import torch
from torch import Tensor, nn

from marft.config.algorithm import OptimizerSettings
from marft.models.devices import copy_together, read_tensors
from marft.models.dtensors import full_tensor, local_shard, shard_like
from marft.models.half_precision import MasterWeights

if TYPE_CHECKING:
    from marft.models.policy_registry import Policy

T = TypeVar("T")
HOST = torch.device("cpu")
MASTER = "master"


def learning_rate_factor(settings: OptimizerSettings, step: int, steps: int) -> float:
    """Return the learning-rate factor at a training step: linear warm-up, then the schedule.

    >>> settings = OptimizerSettings(schedule="linear", warmup_steps=2)
    >>> [round(learning_rate_factor(settings, step, 6), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]

    Args:
        settings: settings of the optimizer.
        step: index of the training step.
        steps: total number of training steps.
    """
    if step < settings.warmup_steps:
        return (step + 1) / settings.warmup_steps
    progress = (step - settings.warmup_steps) / max(1, steps - settings.warmup_steps)
    match settings.schedule:
        case "constant":
            return 1.0
        case "linear":
            shape = 1.0 - progress
        case "cosine":
            shape = 0.5 * (1.0 + math.cos(math.pi * progress))
        case _:
            assert_never(settings.schedule)
    return settings.min_lr_ratio + (1.0 - settings.min_lr_ratio) * shape


@dataclass(frozen=True, slots=True, eq=False)
class PolicySnapshot:
    """Snapshot of a policy's parameters and optimizer moments."""

    parameters: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]


class PolicyOptimizer:
    """Optimizer for a single policy, with float32 parameters and moments for any base dtype.

    Args:
        parameters: trained parameters by name, float32.
        settings: settings of the optimizer.
        learning_rate: peak learning rate.
        steps: total number of training steps, for the schedule.
        master_weights: master weights, if the parameters are float32 masters. They are part of the optimizer state,
            because the saved policy contains rounded weights.
        offload: keep the moments in host memory, except during an optimizer step.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        settings: OptimizerSettings,
        learning_rate: float,
        steps: int,
        master_weights: MasterWeights | None = None,
        offload: bool = False,
    ) -> None:
        assert parameters, "a trained policy has parameters"
        assert all(parameter.dtype == torch.float32 for parameter in parameters.values())
        self.parameters = dict(parameters)
        self.settings, self.learning_rate, self.steps = settings, learning_rate, steps
        self.master_weights, self.offload = master_weights, offload
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(),
            lr=learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            foreach=True,
        )

    @classmethod
    def from_policy(
        cls, policy: Policy, settings: OptimizerSettings, learning_rate: float, steps: int, offload: bool = False
    ) -> PolicyOptimizer:
        """Return an optimizer for a policy's trained parameters."""
        parameters = policy.parameters()
        return cls(parameters, settings, learning_rate, steps, policy.master_weights, offload)

    def begin_step(self, step: int) -> float:
        """Set the learning rate for a training step → learning rate."""
        rate = self.learning_rate * learning_rate_factor(self.settings, step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def snapshot(self) -> PolicySnapshot:
        """Copy the parameters and the optimizer moments, as far as held on this rank."""
        moments = optimizer_tensors(self.optimizer, self.parameters)
        return PolicySnapshot(
            self.copy_parameters(), {name: local_shard(tensor).clone() for name, tensor in moments.items()}
        )

    def copy_parameters(self) -> dict[str, Tensor]:
        """Copy the parameters, sharded alike."""
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def load_parameters(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the parameters to tensors that are sharded alike."""
        for name, parameter in self.parameters.items():
            local_shard(parameter).copy_(local_shard(tensors[name]))
        self.sync_weights()

    def interpolate(self, before: PolicySnapshot, after: PolicySnapshot, fraction: float) -> None:
        """Set the parameters to an interpolation between two snapshots; moments stay unchanged.

        Args:
            before: snapshot at fraction 0.
            after: snapshot at fraction 1.
            fraction: position between the snapshots.
        """
        self.load_parameters(
            {
                name: torch.lerp(local_shard(start), local_shard(after.parameters[name]), fraction)
                for name, start in before.parameters.items()
            }
        )

    def restore(self, snapshot: PolicySnapshot) -> None:
        """Restore parameters and moments from a snapshot."""
        self.load_parameters(snapshot.parameters)
        restore_moments(self.optimizer, self.parameters, snapshot.moments)

    def state(self) -> dict[str, Tensor]:
        """Return Adam's state and ``<parameter>.master`` as flat tensors, sharded like the parameters."""
        master_tensors = {f"{name}.{MASTER}": parameter.detach() for name, parameter in self.parameters.items()}
        return optimizer_tensors(self.optimizer, self.parameters) | (master_tensors if self.master_weights else {})

    @torch.no_grad()
    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from unsharded tensors.

        Saved masters are also loaded into parameters that are not masters.
        """
        restore_optimizer(self.optimizer, self.parameters, tensors)
        self.offload_moments()
        for name, parameter in self.parameters.items():
            if f"{name}.{MASTER}" in tensors:
                local_shard(parameter).copy_(local_shard(shard_like(tensors[f"{name}.{MASTER}"], parameter)))
        self.sync_weights()

    def sync_weights(self) -> None:
        """Update the policy's weights after a write to its parameters."""
        if self.master_weights:
            self.master_weights.copy_to_model()

    def zero_grad(self) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad()

    def step(self) -> float:
        """Clip the gradient and take an optimizer step → gradient norm before clipping.

        A non-finite gradient leaves the parameters unchanged.
        """
        return step_optimizers([self])[0]

    def clip_gradient(self) -> Tensor:
        """Clip the gradient → norm before clipping, over the shards from every rank."""
        return full_tensor(
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.settings.max_gradient_norm, foreach=True)
        )

    def step_clipped(self) -> None:
        """Take an optimizer step with clipped gradients."""
        with self._load_moments():
            self.optimizer.step()
        self.sync_weights()

    @contextmanager
    def _load_moments(self) -> Iterator[None]:
        """Keep offloaded moments on the parameters' device inside the context."""
        if not self.offload:
            yield
            return
        for parameter, state in self.optimizer.state.items():
            move_moments(state, local_shard(parameter).device)
        try:
            yield
        finally:
            self.offload_moments()

    def offload_moments(self) -> None:
        """Move the moments to host memory if offloading is on."""
        for state in self.optimizer.state.values() if self.offload else ():
            move_moments(state, HOST)


def step_optimizers(optimizers: Sequence[PolicyOptimizer]) -> list[float]:
    """Take a :meth:`PolicyOptimizer.step` with each optimizer; read the norms together."""
    norms = [float(norm[0]) for norm in read_tensors([optimizer.clip_gradient() for optimizer in optimizers])]
    for optimizer, norm in zip(optimizers, norms, strict=True):
        if math.isfinite(norm):
            optimizer.step_clipped()
    return norms


def move_moments(state: dict[str, Tensor], device: torch.device) -> None:
    """Move a parameter's Adam moments to a device; the step count is always in host memory."""
    for key in ("exp_avg", "exp_avg_sq"):
        if key in state:
            state[key] = state[key].to(device)


def select_prefix(state: Mapping[str, T], part: str) -> dict[str, T]:
    """Select entries with a prefix, and remove the prefix from their names.

    >>> select_prefix({"a/b/step": 1, "a/c/step": 2}, "a/b")
    {'step': 1}
    """
    return {name.removeprefix(f"{part}/"): value for name, value in state.items() if name.startswith(f"{part}/")}


def optimizer_tensors(optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Return an Adam optimizer's state as flat tensors: ``<parameter>.exp_avg``, ``.exp_avg_sq``, ``.step``."""
    return {
        f"{name}.{key}": value
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor]
) -> None:
    """Restore an Adam optimizer from unsharded tensors of :func:`optimizer_tensors`.

    A parameter without entries returns to its state before the first step.
    """
    moments: list[Tensor] = []
    values: list[Tensor] = []
    for name, parameter in parameters.items():
        prefix = f"{name}."
        state = {
            key[len(prefix) :]: tensor
            for key, tensor in tensors.items()
            if key.startswith(prefix) and key[len(prefix) :] in ("step", "exp_avg", "exp_avg_sq")
        }
        optimizer.state.pop(parameter, None)
        if state:
            sharded = {key: tensor if key == "step" else shard_like(tensor, parameter) for key, tensor in state.items()}
            optimizer.state[parameter] = {
                key: torch.empty_like(tensor, device=tensor.device if key == "step" else parameter.device)
                for key, tensor in sharded.items()
            }
            moments += map(local_shard, optimizer.state[parameter].values())
            values += map(local_shard, sharded.values())
    copy_together(moments, values)


@torch.no_grad()
def restore_moments(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], moments: Mapping[str, Tensor]
) -> None:
    """Restore an optimizer's moments from local copies, unlike :func:`restore_optimizer`, which takes unsharded
    tensors.
    """
    for name, parameter in parameters.items():
        state = optimizer.state.get(parameter, {})
        if not any(f"{name}.{key}" in moments for key in state):
            optimizer.state.pop(parameter, None)
            continue
        for key, tensor in state.items():
            local_shard(tensor).copy_(moments[f"{name}.{key}"])
