"""Loading of a team with its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from marft.config.helpers import without_helpers
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.export.recipe import check_bases
from marft_serve.serving.settings import ServedTeam


@contextmanager
def load_team(served_team: ServedTeam) -> Iterator[LocalRolloutRunner]:
    """Context manager with a team's models and engine.

    Raises:
        ValueError: a model or checkpoint is not available, or a base model differs from the one used in training.
    """
    with LocalRolloutRunner(without_helpers(served_team.run)) as rollouts:
        rollouts.load_checkpoint(served_team.checkpoint)
        if served_team.export is not None:
            check_bases(served_team.export, rollouts.models.compute_digests())
        rollouts.publish(0)
        yield rollouts
