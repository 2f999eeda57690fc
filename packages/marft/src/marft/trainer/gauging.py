"""Device metrics: peak memory, and model FLOPs utilization; neither exists for a CPU."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from marft.common.types import Action, Episode
from marft.config.models import local_model
from marft.config.run import RunSettings
from marft.models.cards import CARDS, REPORTED, Card, Precision
from marft.models.devices import forget_peak_memory, peak_memory, reported_name
from marft.models.flops import training_flops
from marft.models.shapes import Shape, find_shape
from marft.trainer.choice_scoring import scored_tokens

MEMORY, MFU = "device/peak_memory", "learner/mfu"


class Row(NamedTuple):
    """Token counts of a trained text: policy, tokens read, and tokens scored."""

    policy: str
    read: int
    scored: int


@dataclass(frozen=True, slots=True)
class Trained:
    """Trained policy on a known GPU kind."""

    shape: Shape
    adapter: int  # parameters of the adapter; 0 without one
    whole: bool  # True if the full model is trained
    rate: float  # peak operations per second, from the data sheet

    @staticmethod
    def of(run: RunSettings, name: str, card: Card) -> Trained:
        """Look up the sizes of a policy.

        Raises:
            ValueError: sizes of the model or of its adapters are unknown.
        """
        policy = run.policies[name]
        model = local_model(run.models, policy.model)
        shape = find_shape(model, run.models[model])
        adapted = policy.train == "lora" or bool(policy.adapter)
        adapter = shape.adapter_parameters(policy.lora.rank, policy.lora.targets) if adapted else 0
        return Trained(shape, adapter, policy.train == "full", Precision.of(run.models[model], card).rate(card))

    def seconds(self, row: Row) -> float:
        """Return the minimum seconds for training on a row, at the peak rate."""
        share = row.scored / row.read
        return row.read * training_flops(self.shape, row.read, share, self.adapter, whole=self.whole) / self.rate


@dataclass(frozen=True, slots=True)
class Utilization:
    """Learner's model FLOPs utilization, for known GPUs and models."""

    run: RunSettings
    policies: Mapping[str, Trained]

    @staticmethod
    def of(run: RunSettings, device: str) -> Utilization | None:
        """Look up the GPU and the sizes of all trained policies.

        Args:
            run: recipe of the run.
            device: device name as reported by the driver; "" without a GPU.

        Returns:
            None if the GPU or the sizes of a model are unknown.
        """
        name = REPORTED.get(device)
        if name is None:
            return None
        trained = [name for name, policy in run.policies.items() if policy.train != "frozen"]
        try:
            return Utilization(run, {policy: Trained.of(run, policy, CARDS[name]) for policy in trained})
        except ValueError:  # unsupported model family or adapter targets
            return None

    def share(self, rows: Iterable[Row], seconds: float) -> float:
        """Return the model FLOPs utilization (Chowdhery et al. 2022, PaLM, appendix B).

        The utilization is the operations of forward and backward passes over the GPUs' peak operations in ``seconds``.
        Recomputation counts once.

        Args:
            rows: token counts of the trained texts.
            seconds: duration of learning.
        """
        at_best = sum(self.policies[row.policy].seconds(row) for row in rows if row.policy in self.policies)
        return self.run.algorithm.epochs * at_best / (seconds * self.run.training.ranks)


class Gauge:
    """GPU monitor: peak memory and utilization per step.

    Args:
        run: recipe of the run.
        device: device of the learner; with several ranks, of the first rank.
    """

    def __init__(self, run: RunSettings, device: torch.device) -> None:
        self.device = device
        self.utilization = Utilization.of(run, reported_name(device))

    def begin(self) -> None:
        """Reset the peak memory at the start of a step."""
        forget_peak_memory(self.device)

    def metrics(self, episodes: Sequence[Episode], seconds: float) -> dict[str, float]:
        """Return the available metrics at the end of a step.

        Args:
            episodes: episodes used for training.
            seconds: duration of learning.
        """
        found: dict[str, float] = {}
        memory = peak_memory(self.device)
        if memory is not None:
            found[MEMORY] = float(memory)
        if self.utilization is not None:
            rows = (row for episode in episodes for action in episode.actions for row in _rows(action))
            found[MFU] = self.utilization.share(rows, seconds)
        return found


def _rows(action: Action) -> Iterator[Row]:
    for said in scored_tokens(action):
        yield Row(action.policy, len(said.context) + len(said.tokens) - 1, int(said.scored.sum()))
