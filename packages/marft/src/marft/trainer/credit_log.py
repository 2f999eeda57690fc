"""Per-action log during an update, for the credit record.

Values are stored during training, so no forward pass is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from marft.common.types import ActionCredit, ActionKey, Episode
from marft.models.devices import DeferredReads
from marft.trainer.batching import MicroBatch
from marft.trainer.interfaces import CreditOutput, Floats
from marft.trainer.rank_group import Ranks


@dataclass(frozen=True, slots=True, eq=False)
class CreditLog:
    """Entropies and gradients in an update, by the action's key.

    Args:
        entropies: entropy of each decision when first scored, in nats.
        gradients: Σ |∂loss/∂log π| over an action's decisions and all minibatches with an optimizer step.
    """

    entropies: dict[ActionKey, Floats] = field(default_factory=dict)
    gradients: dict[ActionKey, float] = field(default_factory=dict)

    def add_entropies(self, deferred: DeferredReads, batch: MicroBatch, entropies_T: Tensor) -> None:
        """Store the entropies of a micro-batch at the first scoring of its actions."""
        deferred.add(entropies_T, lambda flat: self.entropies.update(batch.split_by_action(flat)))

    def add_gradients(self, deferred: DeferredReads, batch: MicroBatch, gradient_T: Tensor) -> None:
        """Add the absolute gradient of a micro-batch's log-probabilities."""

        def add(flat: Floats) -> None:
            for key, sizes in batch.split_by_action(flat).items():
                self.gradients[key] = self.gradients.get(key, 0.0) + float(sizes.sum())

        deferred.add(gradient_T.abs(), add)

    def merge(self, other: CreditLog) -> None:
        """Merge another log into this one."""
        self.entropies.update(other.entropies)
        for key, size in other.gradients.items():
            self.gradients[key] = self.gradients.get(key, 0.0) + size

    def merge_ranks(self, ranks: Ranks) -> CreditLog:
        """Merge the logs from every rank."""
        if ranks.count == 1:
            return self
        merged = CreditLog()
        for rank_log in ranks.gather(self):
            merged.merge(rank_log)
        return merged


CreditCallback = Callable[[list[ActionCredit]], None]  # callback for the credit of each action in a step


def build_credit_records(
    episodes: Sequence[Episode],
    credit: CreditOutput,
    used_advantages: Mapping[int, Floats],
    values: Sequence[Floats] | None,
    old: Mapping[ActionKey, Floats],
    credit_log: CreditLog,
) -> list[ActionCredit]:
    """Return one credit record per action, in the order of the episodes.

    Args:
        episodes: episodes of the step.
        credit: credit of their actions.
        used_advantages: advantages passed to the objective, by the action's ``id()``, because forks may share an
            action's key.
        values: critic's values of each action; None without a critic.
        old: log-probabilities at the start of the step, by the action's key.
        credit_log: log of the update.
    """
    rows = [(episode, action) for episode in episodes for action in episode.actions]
    records = []
    for number, (episode, action) in enumerate(rows):
        advantages = used_advantages.get(id(action))
        key = action.key if advantages is not None else None
        scored = old.get(key) if key else None
        records.append(
            ActionCredit(
                episode=episode,
                action=action,
                group=credit.groups[number] if credit.groups else "",
                raw_advantages=credit.advantages[number],
                advantages=advantages,
                values=values[number] if values is not None else None,
                entropy=credit_log.entropies.get(key) if key else None,
                log_prob_diff=None if scored is None else scored - action.log_probs.astype(np.float64),
                gradient_size=credit_log.gradients.get(key) if key else None,
            )
        )
    return records
