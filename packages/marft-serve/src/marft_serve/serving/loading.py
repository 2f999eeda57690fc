"""A team with its weights, ready to be asked."""

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
    """Load what a team acts with.

    Raises:
        ValueError: it cannot be had, or is not what it was trained on.
    """
    with LocalRollouts(without_helpers(served.run)) as rollouts:
        if served.checkpoint is not None:
            load_policies(served.checkpoint, rollouts.models, dict.fromkeys(served.run.trained_policies))
            rollouts.instruct(told_at(served.checkpoint))
        if served.export is not None:
            check_bases(served.export, rollouts.models.digests())
        rollouts.publish(0)
        yield rollouts
