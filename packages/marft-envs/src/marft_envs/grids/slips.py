"""When scripts slip: a weak model's habits are not spread evenly."""

from __future__ import annotations

from marft.envs.scripts import Cue


def works(cue: Cue, skill: float, tempted: bool) -> bool:
    """Whether a turn is played well: with a chance of skill² where it is tempting not to, else of √skill.

    So what is likeliest of a model that has learned from such turns is neither always right nor always wrong.
    """
    chance: float = skill ** (2.0 if tempted else 0.5)
    return cue.random.random() < chance
