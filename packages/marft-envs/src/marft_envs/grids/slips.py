"""Mistakes of scripted policies, unevenly spread like a weak model's."""

from __future__ import annotations

from marft.envs.scripts import Cue


def works(cue: Cue, skill: float, tempted: bool) -> bool:
    """Draw whether a turn is played well: with probability skill² at a tempting mistake, otherwise √skill.

    A model trained on such turns is then neither always right nor always wrong in its most likely answers.
    """
    chance: float = skill ** (2.0 if tempted else 0.5)
    return cue.random.random() < chance
