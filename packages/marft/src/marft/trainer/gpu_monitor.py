"""Device metrics: peak memory, and model FLOPs utilization; neither exists for a CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from marft.common.callbacks import Callback
from marft.common.types import Action, Episode
from marft.config.models import local_model
from marft.config.run import RunSettings
from marft.models.device_specs import DEVICE_SPECS, DRIVER_NAMES, DeviceSpec, Precision
from marft.models.devices import device_name, peak_memory, reset_peak_memory
from marft.models.model_sizes import ModelSizes, find_sizes, training_flops
from marft.trainer.micro_batch import scored_tokens

MEMORY, MFU = "device/peak_memory", "learner/mfu"


class RowTokens(NamedTuple):
    """Token counts of a trained text: policy, tokens read, and tokens scored."""

    policy: str
    input_tokens: int
    scored: int


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """Trained policy on a known GPU kind."""

    shape: ModelSizes
    adapter: int  # parameters of the adapter; 0 without one
    is_full_model: bool  # True if the full model is trained
    rate: float  # peak operations per second, from the data sheet

    @staticmethod
    def from_run(run: RunSettings, name: str, card: DeviceSpec) -> TrainedPolicy:
        """Look up the sizes of a policy.

        Raises:
            ValueError: sizes of the model or of its adapters are unknown.
        """
        policy = run.policies[name]
        model = local_model(run.models, policy.model)
        shape = find_sizes(model, run.models[model])
        adapted = policy.train == "lora" or bool(policy.adapter)
        adapter = shape.adapter_parameters(policy.lora.rank, policy.lora.target_modules) if adapted else 0
        return TrainedPolicy(
            shape,
            adapter,
            policy.train == "full",
            Precision.from_settings(run.models[model], card).flops_per_second(card),
        )

    def min_training_seconds(self, row: RowTokens) -> float:
        """Return the minimum seconds for training on a row, at the peak rate."""
        share = row.scored / row.input_tokens
        return (
            row.input_tokens
            * training_flops(self.shape, row.input_tokens, share, self.adapter, full_training=self.is_full_model)
            / self.rate
        )


@dataclass(frozen=True, slots=True)
class Utilization:
    """Learner's model FLOPs utilization, for known GPUs and models."""

    run: RunSettings
    policies: Mapping[str, TrainedPolicy]

    @staticmethod
    def from_run(run: RunSettings, device: str) -> Utilization | None:
        """Look up the GPU and the sizes of all trained policies.

        Args:
            run: recipe of the run.
            device: device name as reported by the driver; "" without a GPU.

        Returns:
            None if the GPU or the sizes of a model are unknown.
        """
        name = DRIVER_NAMES.get(device)
        if name is None:
            return None
        trained = [name for name, policy in run.policies.items() if policy.train != "frozen"]
        try:
            return Utilization(
                run, {policy: TrainedPolicy.from_run(run, policy, DEVICE_SPECS[name]) for policy in trained}
            )
        except ValueError:  # unsupported model family or adapter targets
            return None

    def model_flops_utilization(self, rows: Iterable[RowTokens], seconds: float) -> float:
        """Return the model FLOPs utilization (Chowdhery et al. 2022, PaLM, appendix B).

        The utilization is the operations of forward and backward passes over the GPUs' peak operations in ``seconds``.
        Recomputation counts once.

        Args:
            rows: token counts of the trained texts.
            seconds: duration of learning.
        """
        min_seconds = sum(
            self.policies[row.policy].min_training_seconds(row) for row in rows if row.policy in self.policies
        )
        return self.run.algorithm.epochs * min_seconds / (seconds * self.run.training.ranks)


class GpuMonitor(Callback):
    """Callback that adds the peak memory and the utilization of the GPU to the metrics of each step.

    Args:
        run: recipe of the run.
        device: device of the learner; with several ranks, of the first rank.
    """

    def __init__(self, run: RunSettings, device: torch.device) -> None:
        self.device = device
        self.utilization = Utilization.from_run(run, device_name(device))

    def on_train_start(self, completed_steps: int, steps: int) -> None:  # noqa: ARG002
        """Reset the peak memory."""
        reset_peak_memory(self.device)

    def on_update(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:  # noqa: ARG002
        """Add the metrics of a step."""
        metrics |= self.metrics(episodes, metrics["seconds/learning"])

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:  # noqa: ARG002
        """Reset the peak memory for the next step."""
        reset_peak_memory(self.device)

    def metrics(self, episodes: Sequence[Episode], seconds: float) -> dict[str, float]:
        """Return the available metrics at the end of a step.

        Args:
            episodes: episodes used for training.
            seconds: duration of learning.
        """
        metrics: dict[str, float] = {}
        memory = peak_memory(self.device)
        if memory is not None:
            metrics[MEMORY] = float(memory)
        if self.utilization is not None:
            rows = (row for episode in episodes for action in episode.actions for row in _rows(action))
            metrics[MFU] = self.utilization.model_flops_utilization(rows, seconds)
        return metrics


def _rows(action: Action) -> Iterator[RowTokens]:
    for segment in scored_tokens(action):
        yield RowTokens(action.policy, segment.row_length, segment.num_scored)
