r"""World with rules that no prompt states, a small model that knows how to ask, and a helper that knows the rules.

    problem    Compute f1(23, 45).                                     (23 + 45 - 83, which no prompt states)
    the model  works:  <ask knowledge>What is f1(23, 45)?</ask><re>f1(23, 45) is 23 + 45 - 83.</re>
                       23 + 45 = 68. 68 - 83 = -15. The answer is \boxed{-15}.
               slips:  At a glance, the answer is \boxed{131}.

In the model's training data, every question has its own rule, drawn at random from 392, and a reply that states it. So
the model knows how to ask, what a reply looks like and how to use it, but none of the rules. The helper learned the
rules, first steps of sums, and whether a result is right. Tasks of held-out splits are never demonstrated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random

from warm_up import Row

from marft.agents.prompt_messages import TruncationPolicy
from marft.common.types import AgentProfile, Task
from marft.config.interfaces.environment import Split
from marft.envs.graded_sessions import Grade, SingleTurn
from marft.inference.renderer import ChatRenderer
from marft_envs.generated import GeneratedEnvironment, GeneratedTask

QUESTION = "Compute {}."
SOLVER = r"You are the solver. Work out the problem and put the answer in \boxed{}."
HELPERS = {
    "knowledge": "You know what every function is.",
    "reasoning": "You do the first step.",
    "verify": "You say whether a result is right.",
}
CALL, REPLY = "<ask {kind}>{question}</ask>", "<re>{text}</re>"
LARGEST = 99  # largest constant of a random rule
NUMBERS = (10, 49)  # range of a and b; the bundled model can add two of them and a constant
RULES = {1: (1, -83), 2: (-1, 57), 3: (1, 64), 4: (-1, -36)}  # f(a, b) = a ± b + c
ASKS, ASKS_AGAIN = 0.6, 0.25  # probability that a demonstrator asks for the rule, and then for something else


@dataclass(frozen=True)
class Problem:
    """Problem ``f(a, b)``, which is ``a ± b + c``."""

    function: int
    a: int
    b: int
    sign: int
    c: int

    @property
    def asked(self) -> str:
        return f"f{self.function}({self.a}, {self.b})"

    @property
    def meaning(self) -> str:
        return f"{self.a} {'+' if self.sign > 0 else '-'} {self.b} {'+' if self.c > 0 else '-'} {abs(self.c)}"

    @property
    def first(self) -> int:
        return self.a + self.sign * self.b

    @property
    def value(self) -> int:
        return self.first + self.c

    @property
    def first_step(self) -> str:
        return f"{self.a} {'+' if self.sign > 0 else '-'} {self.b} = {self.first}"

    @property
    def last_step(self) -> str:
        return f"{self.first} {'+' if self.c > 0 else '-'} {abs(self.c)} = {self.value}"


def drawn(random: Random, known: bool) -> Problem:
    """Return a problem with the world's rules (``known``), or with a random rule."""
    function = random.choice(list(RULES))
    sign, c = (
        RULES[function] if known else (random.choice((1, -1)), random.choice((1, -1)) * random.randint(2, LARGEST))
    )
    return Problem(function, random.randint(*NUMBERS), random.randint(*NUMBERS), sign, c)


class Functions(GeneratedEnvironment):
    """Environment of ``f(a, b)`` for functions whose rules no prompt states."""

    only: str = ""  # JSON file with the ids of the tasks to keep; "": all

    def generate_task(self, random: Random) -> GeneratedTask:
        """Return a task of any split."""
        problem = drawn(random, known=True)
        prompt = QUESTION.format(problem.asked)
        return GeneratedTask(prompt, prompt, {"answer": problem.value})

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks of a split."""
        return [task for task in super().tasks(split) if not self.only or task.id in self._kept]

    @cached_property
    def _kept(self) -> set[str]:
        return set(json.loads(Path(self.only).read_text(encoding="utf-8")))

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002
        """Start a session that grades the last box as right or wrong."""

        def grade(text: str) -> Grade:
            right = text.rpartition(r"\boxed{")[2].partition("}")[0].strip() == str(task.data["answer"])
            return Grade(float(right), right)

        return SingleTurn(task, grade)


class Talk:
    """Conversation as token ids; the model is trained on its own text."""

    def __init__(self, renderer: ChatRenderer, instructions: str, question: str) -> None:
        self.renderer = renderer
        prompt = renderer.render(
            "", AgentProfile("", instructions), question, (), reserve=1, cut=TruncationPolicy()
        ).ids
        self.ids: list[int] = prompt.tolist()
        self.learnt = [False] * len(self.ids)

    def add(self, text: str, learnt: bool) -> None:
        ids = self.renderer.encode_text("", text).tolist()
        self.ids += ids
        self.learnt += [learnt] * len(ids)

    def end(self) -> Talk:
        self.ids.append(self.renderer.formats[""].stop_ids[0])
        self.learnt.append(True)
        return self


def of_the_model(renderer: ChatRenderer) -> Callable[[], Row]:
    """Return a generator of the model's training data: how to ask, and how to use a reply."""
    random, world = Random(0), Functions()
    held_out = {task.prompt for split in ("validation", "test") for task in world.tasks(split)}

    def ask(talk: Talk, kind: str, question: str, reply: str) -> None:
        talk.add(CALL.format(kind=kind, question=question), True)
        talk.add(REPLY.format(text=reply), True)

    def one() -> Row:
        problem = drawn(random, known=False)
        prompt = QUESTION.format(problem.asked)
        if prompt in held_out:
            return one()
        talk = Talk(renderer, SOLVER, prompt)
        if random.random() > ASKS:
            talk.add(rf"At a glance, the answer is \boxed{{{random.randint(-150, 200)}}}.", True)
            return talk.end()
        asked = problem.asked
        ask(talk, "knowledge", f"What is {asked}?", f"{asked} is {problem.meaning}.")
        if random.random() < ASKS_AGAIN:
            ask(talk, "reasoning", f"{problem.meaning}?", f"{problem.first_step}.")
        else:
            talk.add(f" {problem.first_step}.", True)
        talk.add(f" {problem.last_step}.", True)
        if random.random() < ASKS_AGAIN:
            ask(talk, "verify", f"{asked} = {problem.value}?", "Right.")
        talk.add(rf" The answer is \boxed{{{problem.value}}}.", True)
        return talk.end()

    return one


def of_the_helper(renderer: ChatRenderer) -> Callable[[], Row]:
    """Return a generator of the helper's training data: the rules, first steps, and right results."""
    random = Random(1)

    def one() -> Row:
        problem = drawn(random, known=True)
        asked, kind = problem.asked, random.choice([*HELPERS, "knowledge"])
        if kind == "knowledge":
            question, reply = f"What is {asked}?", f"{asked} is {problem.meaning}."
        elif kind == "reasoning":
            question, reply = f"{problem.meaning}?", f"{problem.first_step}."
        else:
            right = random.random() < 0.5
            value = problem.value + (0 if right else random.choice((-10, -1, 1, 10)))
            question, reply = f"{asked} = {value}?", "Right." if right else "Wrong."
        talk = Talk(renderer, HELPERS[kind], question)
        talk.add(reply, True)
        return talk.end()

    return one
