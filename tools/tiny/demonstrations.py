r"""Demonstrations of mixed quality: what the bundled tiny model learns from before any reinforcement.

They teach the *skills* of a team that adds numbers (take the expression as it stands, do its first step, say what is
left; or do the last step and answer) and also its bad *habits*: a reasoner that merely restates the problem, an actor
that ignores the message and guesses at a glance. Who slips when depends on the number that the agent would have to
add: large ones are put off more often. So greedy decoding is not always right or always wrong either.

    problem   23 + 85 - 12
    reasoner  works:    23 + 85 = 108, leaving 108 - 12.        slips: The problem is 23 + 85 - 12.
    actor     works:    108 - 12 = 96, so the answer is \boxed{96}.   slips: At a glance, the answer is \boxed{107}.
    solver    works:    23 + 85 = 108, 108 - 12 = 96, so the answer is \boxed{96}.   slips: as the actor

Questions of held-out splits (``marft.envs.splits``) are never demonstrated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from marft.agents.prompt_messages import build_messages
from marft.common.types import AgentProfile
from marft.config.interfaces.channel import Message
from marft.envs.splits import assign_split

QUESTION = "State the final answer to the following arithmetic problem: {} ="

INSTRUCTIONS = {
    "reasoner": (
        "You are the reasoner. Work out the first step and pass on what is left.",
        "You are the reasoner. Do the first step of the problem and say what is left to do.",
        "Work out the first step of the problem for your teammates and pass on what is left.",
    ),
    "actor": (
        r"You are the actor. Finish the work with the help of the message and put the answer in \boxed{}.",
        r"You are the actor. Take the message, finish the problem and put the answer in \boxed{}.",
        r"Finish the problem with the help of the message from your teammates. Put the answer in \boxed{}.",
    ),
    "solver": (
        r"You are the solver. Work out the problem step by step and put the answer in \boxed{}.",
        r"Solve the problem step by step and put the answer in \boxed{}.",
        r"You work alone. Do the problem step by step and put the answer in \boxed{}.",
    ),
}
TERMS = {1: 1, 2: 8, 3: 60, 4: 8, 5: 5, 6: 4, 7: 3, 8: 3, 9: 2, 10: 2, 11: 2, 12: 2}  # of a question: weight
ROLES = {"reasoner": 36, "actor": 32, "solver": 12, "drill": 20}
DRILL_SUMS = 8  # single steps in one drill: practice, apart from any team
SURE, TEMPTED = 0.80, 0.30  # chance to work with a small or a large number, in sums of up to three terms
LARGE = 70  # numbers from here on are put off
LONGEST_HISTORY = 5  # terms of the question up to which agents may see every earlier message


@dataclass(frozen=True)
class Expression:
    """A running total and the terms that are left: ``23 + 85 - 12`` is ``Expression(23, (85, -12))``."""

    total: int
    rest: tuple[int, ...] = ()

    def __str__(self) -> str:
        return " ".join([str(self.total), *(f"{'-' if term < 0 else '+'} {abs(term)}" for term in self.rest)])

    @property
    def value(self) -> int:
        return self.total + sum(self.rest)

    def step(self) -> Expression:
        return Expression(self.total + self.rest[0], self.rest[1:])

    def first_step(self) -> str:
        return f"{Expression(self.total, self.rest[:1])} = {self.step().total}"


@dataclass(frozen=True)
class Demonstration:
    """A chat and what the assistant says in it."""

    chat: list[dict[str, str]]
    reply: str
    role: str
    works: bool


def demonstrations(seed: int) -> Iterator[Demonstration]:
    """An endless stream of demonstrations, the same for the same seed."""
    random = Random(seed)
    while True:
        yield _demonstrate(random)


def question_expression(random: Random, terms: int) -> Expression:
    """A question that no held-out split contains."""
    while True:
        first, *others = (random.randint(10, 99) for _ in range(terms))
        expression = Expression(first, tuple(random.choice((1, -1)) * term for term in others))
        if assign_split(QUESTION.format(expression)) == "train":
            return expression


def chance_to_work(operand: int, terms: int) -> float:
    """How likely a demonstrator is to do the step; longer sums were demonstrated with more care."""
    slip = 1.0 - (TEMPTED if abs(operand) >= LARGE else SURE)
    return 1.0 - slip * min(1.0, 2.0 / max(1, terms - 1))


def reason(random: Random, at: Expression, terms: int, works: bool | None = None) -> tuple[str, Expression, bool]:
    """A reasoner's message, the expression it leaves, and whether it worked."""
    if not at.rest:
        return f"The result is {at.total}.", at, True
    works = random.random() < chance_to_work(at.rest[0], terms) if works is None else works
    if not works:
        return f"The problem is {at}.", at, False
    after = at.step()
    return f"{at.first_step()}, leaving {after}." if after.rest else f"{at.first_step()}.", after, True


def act(random: Random, at: Expression, terms: int, works: bool | None = None) -> tuple[str, bool]:
    """An actor's answer and whether it worked; with more than one step left nobody can but guess."""
    last = at.rest[0] if at.rest else at.total
    works = random.random() < chance_to_work(last, terms) if works is None else works
    if len(at.rest) > 1 or not works:
        return _glance(random, at), False
    done = at.first_step() if at.rest else f"The result is {at.total}"
    return f"{done}, so the answer is \\boxed{{{at.value}}}.", True


def solve(random: Random, at: Expression) -> tuple[str, bool]:
    """A lone solver's answer: all steps, or a guess if any number tempts it."""
    terms = len(at.rest) + 1
    if not all(random.random() < chance_to_work(term, terms) for term in at.rest):
        return _glance(random, at), False
    steps, value = [], at.value
    while at.rest:
        steps.append(at.first_step())
        at = at.step()
    return f"{', '.join(steps) or f'The result is {value}'}, so the answer is \\boxed{{{value}}}.", True


def _glance(random: Random, at: Expression) -> str:
    return f"At a glance, the answer is \\boxed{{{at.value + random.choice((1, -1)) * random.randint(1, 30)}}}."


def _demonstrate(random: Random) -> Demonstration:
    role = random.choices(list(ROLES), list(ROLES.values()))[0]
    if role == "drill":
        return _drill(random)
    terms = random.choices(list(TERMS), list(TERMS.values()))[0]
    question = question_expression(random, terms)
    profile = AgentProfile(role, random.choice(INSTRUCTIONS[role]))
    at, seen = question, []
    if role == "solver":
        reply, works = solve(random, question)
    else:
        speakers = random.randint(0, max(0, terms - 2)) if role == "reasoner" else max(0, terms - random.choice((1, 2)))
        for number in range(speakers):
            name = "reasoner" if speakers == 1 else f"reasoner_{number + 1}"
            text, at, _ = reason(random, at, terms)
            seen.append(Message(name, text))
        if terms > LONGEST_HISTORY or random.random() < 0.5:
            seen = seen[-1:]
        reply, works = reason(random, at, terms)[::2] if role == "reasoner" else act(random, at, terms)
    return Demonstration(build_messages(profile, QUESTION.format(question), seen), reply, role, works)


def _drill(random: Random) -> Demonstration:
    sums = [_single_step(random) for _ in range(DRILL_SUMS)]
    chat = build_messages(AgentProfile("drill", "Do each sum."), ", ".join(str(single) for single in sums), [])
    return Demonstration(chat, ", ".join(single.first_step() for single in sums) + ".", "drill", True)


def _single_step(random: Random) -> Expression:
    """One step as it comes up in a sum: mostly early ones, whose running total is small."""
    before = random.choice((0, 0, 0, 1, 1, 2, 4, 8))
    total = random.randint(10, 99) + sum(random.choice((1, -1)) * random.randint(10, 99) for _ in range(before))
    return Expression(total, (random.choice((1, -1)) * random.randint(10, 99),))
