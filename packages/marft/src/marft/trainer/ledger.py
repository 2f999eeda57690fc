"""What the learner knows of a batch, action by action: kept while it is learned from, so nothing is computed twice."""

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
    """What an update finds out on its way, by the action's key: entropies of decisions when they are first looked at,
    and Σ |∂loss/∂log π| over an action's decisions and all minibatches that were stepped on."""

    entropies: dict[ActionKey, Floats] = field(default_factory=dict)
    gradients: dict[ActionKey, float] = field(default_factory=dict)

    def looked_at(self, awaited: Awaited, batch: MicroBatch, entropies_T: Tensor) -> None:
        """Entropies of a micro-batch, the first time that its actions are scored."""
        awaited.add(entropies_T, lambda flat: self.entropies.update(batch.by_action(flat)))

    def pushed(self, awaited: Awaited, batch: MicroBatch, gradient_T: Tensor) -> None:
        """The gradient that a micro-batch's log-probs get."""

        def told(flat: Floats) -> None:
            for key, sizes in batch.by_action(flat).items():
                self.gradients[key] = self.gradients.get(key, 0.0) + float(sizes.sum())

        awaited.add(gradient_T.abs(), told)

    def absorb(self, other: Ledger) -> None:
        """Take in what another has added up."""
        self.entropies.update(other.entropies)
        for key, size in other.gradients.items():
            self.gradients[key] = self.gradients.get(key, 0.0) + size

    def of_all(self, ranks: Ranks) -> Ledger:
        """What all ranks have found."""
        if ranks.count == 1:
            return self
        together = Ledger()
        for ledger in ranks.gather(self):
            together.absorb(ledger)
        return together


Told = Callable[[list[ActionCredit]], None]  # hears what was made of each action of a step


def action_credits(
    episodes: Sequence[Episode],
    credits: Credits,
    given: Mapping[int, Floats],
    values: Sequence[Floats] | None,
    old: Mapping[ActionKey, Floats],
    ledger: Ledger,
) -> list[ActionCredit]:
    """One row an action, in the order of the episodes.

    Args:
        given: advantages as the objective was given them, by the action's ``id()``: forks hold actions of one key.
        old: log-probs of the policies that the step began with, by the action's key.
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
