"""Per-action log during an update, for the credit record.

Values are stored during training, so no forward pass is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from marft.common.types import ActionCredit, ActionKey, Episode
from marft.models.devices import Awaited
from marft.trainer.batching import MicroBatch
from marft.trainer.interfaces import Credits, Floats
from marft.trainer.rank_group import Ranks


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """Entropies and gradients in an update, by the action's key.

    Args:
        entropies: entropy of each decision when first scored, in nats.
        gradients: Σ |∂loss/∂log π| over an action's decisions and all minibatches with an optimizer step.
    """

    entropies: dict[ActionKey, Floats] = field(default_factory=dict)
    gradients: dict[ActionKey, float] = field(default_factory=dict)

    def looked_at(self, awaited: Awaited, batch: MicroBatch, entropies_T: Tensor) -> None:
        """Store the entropies of a micro-batch at the first scoring of its actions."""
        awaited.add(entropies_T, lambda flat: self.entropies.update(batch.by_action(flat)))

    def pushed(self, awaited: Awaited, batch: MicroBatch, gradient_T: Tensor) -> None:
        """Add the absolute gradient of a micro-batch's log-probabilities."""

        def told(flat: Floats) -> None:
            for key, sizes in batch.by_action(flat).items():
                self.gradients[key] = self.gradients.get(key, 0.0) + float(sizes.sum())

        awaited.add(gradient_T.abs(), told)

    def absorb(self, other: Ledger) -> None:
        """Merge another log into this one."""
        self.entropies.update(other.entropies)
        for key, size in other.gradients.items():
            self.gradients[key] = self.gradients.get(key, 0.0) + size

    def of_all(self, ranks: Ranks) -> Ledger:
        """Merge the logs from every rank."""
        if ranks.count == 1:
            return self
        together = Ledger()
        for ledger in ranks.gather(self):
            together.absorb(ledger)
        return together


Told = Callable[[list[ActionCredit]], None]  # callback for the credit of each action in a step


def action_credits(
    episodes: Sequence[Episode],
    credits: Credits,
    given: Mapping[int, Floats],
    values: Sequence[Floats] | None,
    old: Mapping[ActionKey, Floats],
    ledger: Ledger,
) -> list[ActionCredit]:
    """Return one credit record per action, in the order of the episodes.

    Args:
        episodes: episodes of the step.
        credits: credit of their actions.
        given: advantages passed to the objective, by the action's ``id()``, because forks may share an action's key.
        values: critic's values of each action; None without a critic.
        old: log-probabilities at the start of the step, by the action's key.
        ledger: log of the update.
    """
    rows = [(episode, action) for episode in episodes for action in episode.actions]
    found = []
    for number, (episode, action) in enumerate(rows):
        advantages = given.get(id(action))
        key = action.key if advantages is not None else None
        scored = old.get(key) if key else None
        found.append(
            ActionCredit(
                episode=episode,
                action=action,
                group=credits.groups[number] if credits.groups else "",
                raw=credits.advantages[number],
                advantages=advantages,
                values=values[number] if values is not None else None,
                entropy=ledger.entropies.get(key) if key else None,
                difference=None if scored is None else scored - action.log_probs.astype(np.float64),
                gradient=ledger.gradients.get(key) if key else None,
            )
        )
    return found
