"""How much of its cards' rate learning has reached, where the cards and the sizes of all its models are known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from marft.config.run import RunSettings
from marft.planning.cards import CARDS, Card
from marft.planning.configurations import find_shape
from marft.planning.precisions import Precision
from marft.planning.seconds import learned
from marft.planning.shapes import Shape
from marft.planning.work import Lengths, PolicyWork, work_of

REPORTED = {  # what drivers call the cards that are known here; of others by nearly the same name rates differ
    "NVIDIA H100 80GB HBM3": "h100", "NVIDIA H200": "h200", "NVIDIA H20": "h20", "NVIDIA B200": "b200",
    "NVIDIA A100-SXM4-40GB": "a100-40", "NVIDIA A100-SXM4-80GB": "a100-80", "NVIDIA L40S": "l40s",
    "NVIDIA GeForce RTX 4090": "rtx4090", "AMD Instinct MI300X": "mi300x",
}  # fmt: skip


class Row(NamedTuple):
    """A text that was learned from: its policy, the tokens of it that were read, and those of them that were scored."""

    policy: str
    read: int
    scored: int


@dataclass(frozen=True, slots=True)
class Utilization:
    """Of a run's learning, on cards of one kind."""

    run: RunSettings
    card: Card
    shapes: Mapping[str, Shape]
    policies: Mapping[str, PolicyWork]  # that learn

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
        policies = {policy.name: policy for policy in work_of(run).trained}
        try:
            shapes = {policy.model: find_shape(policy.model, run.models[policy.model]) for policy in policies.values()}
            for policy in policies.values():
                shapes[policy.model].adapter_parameters(policy.rank, policy.targets)
        except ValueError:  # of a family, or with adapters on layers, whose parameters are not counted here
            return None
        return Utilization(run, CARDS[name], shapes, policies)

    def share(self, rows: Iterable[Row], seconds: float) -> float:
        """The operations of the updates' forward and backward passes over those of the cards' sheets in ``seconds``:
        model FLOPs utilization (Chowdhery et al. 2022, PaLM, appendix B). What is computed again counts once.
        """
        at_best = sum(self._seconds(self.policies[row.policy], row) for row in rows if row.policy in self.policies)
        return self.run.algorithm.epochs * at_best / (seconds * self.run.training.ranks)

    def _seconds(self, policy: PolicyWork, row: Row) -> float:
        """Of a row, at the rate of the card's sheet."""
        rate = Precision.of(self.run.models[policy.model], self.card).rate(self.card)
        lengths = Lengths(row.read - row.scored, row.scored, row.scored)
        of_row = PolicyWork(
            policy.name, policy.model, policy.train, policy.rank, policy.targets, 1, lengths, policy.here
        )  # fmt: skip
        return row.read * learned(self.shapes[policy.model], of_row, recomputes=False, halves=False) / rate
