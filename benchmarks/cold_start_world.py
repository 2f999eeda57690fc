r"""Sums of four numbers for a team of two agents, with a script that writes out every step.

The bundled tiny model computes each single step of a sum correctly. Its reasoner does one step and leaves the rest.
With two steps left, its actor guesses. So a team whose reasoner has never seen two steps solves almost nothing.

    problem   23 + 85 - 12 + 40
    reasoner  works:  23 + 85 = 108, 108 - 12 = 96, leaving 96 + 40.     slips:  The problem is 23 + 85 - 12 + 40.
    actor     works:  96 + 40 = 136, so the answer is \boxed{136}.       slips:  At a glance, the answer is \boxed{121}.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from marft.envs.reasoning_gym import ReasoningGym
from marft.envs.scripted_policy import PolicyInput

SUM = re.compile(r"-?\d+(?: [+-] \d+)+")


class Sums(ReasoningGym):
    """Reasoning Gym's sums, with a script that does one step at a time."""

    def script(self, skill: float = 1.0) -> Works:
        """Return a script that solves its part of the sum with probability ``skill``, and slips otherwise."""
        return Works(skill)


@dataclass(frozen=True, slots=True)
class Works:
    """Script that works from the last sum in its prompt."""

    skill: float

    def __call__(self, cue: PolicyInput) -> str:
        """Return the agent's message."""
        left, works = SUM.findall(cue.last_message)[-1], cue.random.random() < self.skill
        if cue.role == "reasoner":
            return worked(left, leave=1) if works else f"The problem is {left}."
        value = sum(terms(left))
        if not works or len(terms(left)) > 2:  # an actor does at most one step
            off = cue.random.choice((1, -1)) * cue.random.randint(1, 30)
            return f"At a glance, the answer is \\boxed{{{value + off}}}."
        return f"{worked(left)}, so the answer is \\boxed{{{value}}}."


def terms(text: str) -> list[int]:
    """Return the numbers of a sum.

    >>> terms("23 - 85 + 12")
    [23, -85, 12]
    """
    return [int(term) for term in text.replace(" + ", " ").replace(" - ", " -").split()]


def worked(text: str, leave: int = 0) -> str:
    """Write out a sum from the left, except for the last ``leave`` steps.

    >>> worked("23 + 85 - 12 + 40", leave=1)
    '23 + 85 = 108, 108 - 12 = 96, leaving 96 + 40.'
    """
    total, *rest = terms(text)
    steps = []
    while len(rest) > leave:
        term, *rest = rest
        steps.append(f"{total} {_signed(term)} = {total + term}")
        total += term
    left = " ".join([str(total), *map(_signed, rest)])
    return f"{', '.join(steps)}, leaving {left}." if leave else ", ".join(steps)


def _signed(term: int) -> str:
    return f"{'-' if term < 0 else '+'} {abs(term)}"
