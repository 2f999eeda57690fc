"""Loading of a team with its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from marft.config.consulting import without_helpers
from marft.rollout.rollouts import LocalRollouts
from marft.runs.checkpoints import load_policies
from marft.runs.export.loading import check_bases
from marft.runs.stated import told_at
from marft_serve.serving.settings import Served


@contextmanager
def loaded(served: Served) -> Iterator[LocalRollouts]:
    """Context manager with a team's models and engine.

    Raises:
        ValueError: a model or checkpoint is not available, or a base model differs from the one used in training.
    """
    with LocalRollouts(without_helpers(served.run)) as rollouts:
        if served.checkpoint is not None:
            load_policies(served.checkpoint, rollouts.models, dict.fromkeys(served.run.trained_policies))
            rollouts.instruct(told_at(served.checkpoint))
        if served.export is not None:
            check_bases(served.export, rollouts.models.digests())
        rollouts.publish(0)
        yield rollouts
