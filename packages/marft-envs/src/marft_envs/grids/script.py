"""Parts that scripted policies in grids share: mistakes and random moves."""

from __future__ import annotations

from collections.abc import Sequence

from marft.envs.scripted_policy import PolicyInput


def plays_well(cue: PolicyInput, skill: float, has_mistake: bool) -> bool:
    """Draw whether a turn is played well: with probability skill² at a tempting mistake, otherwise √skill.

    A model trained on such turns is then neither always right nor always wrong in its most likely answers.
    """
    probability: float = skill ** (2.0 if has_mistake else 0.5)
    return cue.random.random() < probability


def random_move(cue: PolicyInput, directions: Sequence[str]) -> str:
    """Return a random option, or a random direction."""
    return cue.random.choice(cue.options or directions)
