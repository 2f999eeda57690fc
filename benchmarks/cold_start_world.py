r"""Sums of four numbers, two to be worked out by each of two agents, with a script that works them out aloud.

The bundled tiny model does each single step of a sum right. Its reasoner does one and leaves the rest; with two steps
left its actor guesses. So a team that has never seen a reasoner do two steps solves next to nothing.

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
    """Reasoning Gym's, with a script that does one step after the other."""

    def script(self, skill: float = 1.0) -> Works:
        """Whoever is asked works out what is left, as often as ``skill`` says; else it slips."""
        return Works(skill)


@dataclass(frozen=True, slots=True)
class Works:
    """Knows nothing but what it reads: the last sum that it is shown."""

    skill: float

    def __call__(self, cue: PolicyInput) -> str:
        """What an agent says."""
        left, works = SUM.findall(cue.last_message)[-1], cue.random.random() < self.skill
        if cue.role == "reasoner":
            return worked(left, leave=1) if works else f"The problem is {left}."
        value = sum(terms(left))
        if not works or len(terms(left)) > 2:  # more than a step is more than an actor does
            off = cue.random.choice((1, -1)) * cue.random.randint(1, 30)
            return f"At a glance, the answer is \\boxed{{{value + off}}}."
        return f"{worked(left)}, so the answer is \\boxed{{{value}}}."


def terms(text: str) -> list[int]:
    """The numbers of a sum.

    >>> terms("23 - 85 + 12")
    [23, -85, 12]
    """
    return [int(term) for term in text.replace(" + ", " ").replace(" - ", " -").split()]


def worked(text: str, leave: int = 0) -> str:
    """A sum done from the left, but for the last ``leave`` steps.

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
