"""Loading of a team with its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marft.config.helpers import without_helpers
from marft.config.run import RunSettings
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.checkpoints import load_policies
from marft.runs.export.recipe import check_bases
from marft.runs.state import read_learned_prompts
from marft_serve.serving.settings import ServedTeam


@contextmanager
def load_team(served_team: ServedTeam) -> Iterator[LocalRolloutRunner]:
    """Context manager with a team's models and engine.

    Raises:
        ValueError: a model or checkpoint is not available, or a base model differs from the one used in training.
    """
    with LocalRolloutRunner(without_helpers(served_team.run)) as rollouts:
        load_weights(rollouts, served_team.run, served_team.checkpoint)
        if served_team.export is not None:
            check_bases(served_team.export, rollouts.models.compute_digests())
        rollouts.publish(0)
        yield rollouts


def load_weights(rollouts: LocalRolloutRunner, run: RunSettings, checkpoint: Path | None) -> None:
    """Load the trained policies and learned prompts of a checkpoint; None loads nothing.

    Raises:
        ValueError: the checkpoint cannot be read.
    """
    if checkpoint is not None:
        load_policies(checkpoint, rollouts.models, dict.fromkeys(run.trained_policies))
        rollouts.instruct(read_learned_prompts(checkpoint))
