"""Ceiling of an untrained team of n agents: the accuracy that the skill of each agent allows.

Every agent gets a *correct* message, regardless of the previous agent's reply, and its own reply is sampled as in
training. A reply is ``right`` if it does at least one step and changes no value. A ``slip`` does not try: the reasoner
restates the problem, or the actor guesses. Training should remove these habits. A ``wrong`` reply tries and has a wrong
result, which measures skill. The ceiling is the accuracy without slips, at unchanged skill:

    Π_i right_i / (right_i + wrong_i).

A trained team can end above it: later agents sometimes repair an error, since all see the question, and training also
improves skill.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from marft.agents.answers import find_answer
from marft.agents.game import Attempt
from marft.common.types import Episode
from marft.config import RunSettings
from marft.envs.tasks import read_tasks
from marft.rollout.local_runner import open_rollout_runner

Verdict = Literal["right", "slip", "wrong"]
TERMS = re.compile(r"-?\d+(?: [+-] \d+)*")
SLIPS = ("The problem is", "At a glance")


@dataclass(frozen=True)
class Sum:
    """Remaining terms of a sum: ``23 + 85 - 12`` is ``Sum((23, 85, -12))``."""

    terms: tuple[int, ...]

    @classmethod
    def read(cls, text: str) -> Sum | None:
        """Parse a sum; return None for any other text.

        >>> Sum.read("108 - 12"), Sum.read("12 apples")
        (Sum(terms=(108, -12)), None)
        """
        if not TERMS.fullmatch(text):
            return None
        first, *others = re.findall(r"(?:^-|[+-] |)\d+", text)
        return cls((int(first), *(int(term.replace(" ", "")) for term in others)))

    @property
    def value(self) -> int:
        return sum(self.terms)

    def __str__(self) -> str:
        return " ".join([str(self.terms[0]), *(f"{'-' if t < 0 else '+'} {abs(t)}" for t in self.terms[1:])])

    def step(self) -> Sum:
        return Sum((self.terms[0] + self.terms[1], *self.terms[2:]))


def message(at: Sum) -> str:
    """Return a correct reasoner's message."""
    done = at.step()
    work = f"{Sum(at.terms[:2])} = {done.value if len(done.terms) == 1 else done.terms[0]}"
    return f"{work}, leaving {done}." if len(done.terms) > 1 else f"{work}."


def judge_reasoner(text: str, at: Sum) -> Verdict:
    """Judge a reasoner's reply.

    >>> at = Sum((23, 85, -12))
    >>> judge_reasoner("23 + 85 = 108, leaving 108 - 12.", at), judge_reasoner("The problem is 23 + 85 - 12.", at)
    ('right', 'slip')
    """
    if text.startswith(SLIPS):
        return "slip"
    left = Sum.read(re.split(r"leaving |= ", text.removesuffix("."))[-1])
    return "right" if left and left.value == at.value and len(left.terms) < len(at.terms) else "wrong"


def judge_actor(text: str, at: Sum) -> Verdict:
    if text.startswith(SLIPS):
        return "slip"
    return "right" if find_answer(text) == str(at.value) else "wrong"


def measure_ceiling(run: RunSettings, attempts: int) -> dict[str, Any]:
    """Return the rates of every agent of an untrained team, and the ceiling with its standard error.

    The team plays ``attempts`` sampled episodes of held-out tasks.
    """
    reasoners = [agent.role for agent in run.agents[:-1]]
    with open_rollout_runner(run) as rollouts:
        tasks = read_tasks(rollouts.run.environment, "test")[:attempts]
        plays = []
        for number in range(attempts):
            task = tasks[number % len(tasks)]
            said = dict(zip(reasoners, correct(task.prompt), strict=False))
            forced = {f"0/{role}/0": text for role, text in said.items()}
            plays.append(Attempt(task, "ceiling", number // len(tasks), messages=forced))
        episodes = rollouts.play(plays, rollouts.team, lambda _: None)
    return summary(episodes)


def correct(question: str) -> list[str]:
    """Return the messages of reasoners that do one step each."""
    at, said = asked(question), []
    while len(at.terms) > 1:
        said.append(message(at))
        at = at.step()
    return said


def asked(question: str) -> Sum:
    found = Sum.read(question.partition(": ")[2].removesuffix(" ="))
    assert found is not None, f"no sum is asked for in {question!r}"
    return found


def summary(episodes: Sequence[Episode]) -> dict[str, Any]:
    verdicts: dict[str, Counter[Verdict]] = {}
    for episode in episodes:
        at = asked(episode.task.prompt)
        for number, action in enumerate(episode.actions):
            judge = judge_reasoner if number + 1 < len(episode.actions) else judge_actor
            verdicts.setdefault(action.agent, Counter())[judge(action.text.strip(), at)] += 1
            at = at.step() if len(at.terms) > 1 else at
    tried = {role: count["right"] + count["wrong"] for role, count in verdicts.items()}
    skill = {role: count["right"] / tried[role] for role, count in verdicts.items()}
    ceiling = math.prod(skill.values())
    spread = math.sqrt(sum((1 - p) / (p * tried[role]) for role, p in skill.items()))
    return {
        "agents": {role: dict(count) for role, count in verdicts.items()},
        "skill": skill, "ceiling": ceiling, "error": ceiling * spread, "attempts": len(episodes),
    }  # fmt: skip
