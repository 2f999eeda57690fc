"""What a training step takes of the device: the most memory of it, and how much of its rate. A CPU has neither."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from marft.config.run import RunSettings
from marft.learning.choice_scoring import scored_tokens
from marft.models.devices import forget_peak_memory, peak_memory, reported_name
from marft.planning.utilization import Row, Utilization
from marft.types import Action, Episode

MEMORY, MFU = "device/peak_memory", "learner/mfu"


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
