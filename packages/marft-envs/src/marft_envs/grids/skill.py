"""Mistakes of scripted policies, unevenly spread like a weak model's."""

from __future__ import annotations

from marft.envs.scripted_policy import PolicyInput


def plays_well(cue: PolicyInput, skill: float, has_mistake: bool) -> bool:
    """Draw whether a turn is played well: with probability skill² at a tempting mistake, otherwise √skill.

    A model trained on such turns is then neither always right nor always wrong in its most likely answers.
    """
    probability: float = skill ** (2.0 if has_mistake else 0.5)
    return cue.random.random() < probability
