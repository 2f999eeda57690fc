"""What a training step takes of the device: the most memory of it, and how much of its rate. A CPU has neither."""

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
    """A text that was learned from: its policy, the tokens of it that were read, and those of them that were scored."""

    policy: str
    read: int
    scored: int


@dataclass(frozen=True, slots=True)
class Trained:
    """A policy that learns, on cards of one kind."""

    shape: Shape
    adapter: int  # parameters; 0 where it has none
    whole: bool  # the model's own weights learn
    rate: float  # operations a second, by the card's sheet

    @staticmethod
    def of(run: RunSettings, name: str, card: Card) -> Trained:
        """
        Raises:
            ValueError: sizes of the model, or of adapters on such layers, are not known.
        """
        policy = run.policies[name]
        model = local_model(run.models, policy.model)
        shape = find_shape(model, run.models[model])
        adapted = policy.train == "lora" or bool(policy.adapter)
        adapter = shape.adapter_parameters(policy.lora.rank, policy.lora.targets) if adapted else 0
        return Trained(shape, adapter, policy.train == "full", Precision.of(run.models[model], card).rate(card))

    def seconds(self, row: Row) -> float:
        """Return the least seconds that learning from a row takes."""
        share = row.scored / row.read
        return row.read * training_flops(self.shape, row.read, share, self.adapter, whole=self.whole) / self.rate


@dataclass(frozen=True, slots=True)
class Utilization:
    """How much of its cards' rate learning reaches, where the cards and the sizes of all its models are known."""

    run: RunSettings
    policies: Mapping[str, Trained]

    @staticmethod
    def of(run: RunSettings, device: str) -> Utilization | None:
        """
        Args:
            device: what its driver calls it; "" where there is none.

        Returns:
            None where the card is not known, or a model's sizes are not.
        """
        name = REPORTED.get(device)
        if name is None:
            return None
        trained = [name for name, policy in run.policies.items() if policy.train != "frozen"]
        try:
            return Utilization(run, {policy: Trained.of(run, policy, CARDS[name]) for policy in trained})
        except ValueError:  # of a family, or with adapters on layers, whose parameters are not counted here
            return None

    def share(self, rows: Iterable[Row], seconds: float) -> float:
        """The operations of the updates' forward and backward passes over those of the cards' sheets in ``seconds``:
        model FLOPs utilization (Chowdhery et al. 2022, PaLM, appendix B). What is computed again counts once.
        """
        at_best = sum(self.policies[row.policy].seconds(row) for row in rows if row.policy in self.policies)
        return self.run.algorithm.epochs * at_best / (seconds * self.run.training.ranks)


class Gauge:
    """Looks at a device, step by step.

    Args:
        device: of the learner; of several ranks, the first one's.
    """

    def __init__(self, run: RunSettings, device: torch.device) -> None:
        self.device = device
        self.utilization = Utilization.of(run, reported_name(device))

    def begin(self) -> None:
        """A step begins."""
        forget_peak_memory(self.device)

    def metrics(self, episodes: Sequence[Episode], seconds: float) -> dict[str, float]:
        """What can be said of the step, now that it is over.

        Args:
            episodes: that were learned from.
            seconds: of learning.
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
