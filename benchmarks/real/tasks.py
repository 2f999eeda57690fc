"""Three tasks that a small real model sometimes solves: sums, instructions, and facts that another agent knows."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from collections.abc import Callable, Sequence

from marft.common.types import Action, JointAction, Observation, Task
from marft.config.interfaces.environment import Environment, Split
from marft.config.interfaces.organization import Agents, Organization
from marft.envs.graded_sessions import Grade, SingleTurn

NUMBER = re.compile(r"\d+")
WORD = re.compile(r"[A-Za-z']+")
TOPICS = (
    "rain", "a bicycle", "the sea", "bread", "a garden", "winter", "a train", "music", "the moon", "coffee",
    "a library", "a river", "birds", "a bridge", "the market", "a letter", "snow", "a candle", "trees",
    "a football match", "tea", "the desert", "a school", "the wind", "a lighthouse", "soup", "a clock",
    "spring", "a dog", "mountains",
)  # fmt: skip
WORDS = (
    "always", "because", "bright", "careful", "early", "friend", "gentle", "home", "little", "morning", "never",
    "often", "quiet", "slowly", "together", "warm",
)  # fmt: skip
THINGS = ("box", "door", "locker", "safe", "shed", "garage", "cellar", "attic")


class Sums(Environment):
    """Two numbers to add, and a question that does not name them, as two halves for :class:`Apart`."""

    highest: int = 19

    def tasks(self, split: Split) -> list[Task]:
        pairs = itertools.product(range(self.highest + 1), repeat=2)
        made = [Task(f"{a}+{b}", f"{a} + {b} = ?{HALVES}What is the sum?", {"answer": str(a + b)}) for a, b in pairs]
        return of_split(made, split)

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002  nothing here is random
        return SingleTurn(task, lambda text: near(text, int(str(task.data["answer"]))))


class Instructions(Environment):
    """One sentence under four rules, each worth a quarter. A sentence that follows all of them solves the task."""

    def tasks(self, split: Split) -> list[Task]:
        made = []
        for topic, word in itertools.product(TOPICS, WORDS):
            most = 8 + int(digest(topic + word), 16) % 8
            made.append(
                Task(
                    f"{topic}/{word}",
                    f"Shout one short sentence about {topic} with the word '{word}'! At most {most} words, no comma, "
                    "and '!' at the end.",
                    {"word": word, "most": most},
                )
            )
        return of_split(made, split)

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002
        return SingleTurn(task, lambda text: kept(text, str(task.data["word"]), int(task.data["most"])))


class Facts(Environment):
    """Codes of several things, and a question about one of them, as two halves for :class:`Apart`."""

    known: int = 3
    count: int = 600

    def tasks(self, split: Split) -> list[Task]:
        made = []
        for number in range(self.count):
            drawn = random.Random(f"facts/{number}")
            things = drawn.sample(THINGS, self.known)
            codes = [str(drawn.randint(10, 99)) for _ in things]
            facts = ", ".join(f"the {thing} is {code}" for thing, code in zip(things, codes, strict=True))
            asked = drawn.randrange(self.known)
            question = f"What is the code of the {things[asked]}?"
            made.append(Task(f"facts/{number}", f"The code of {facts}.{HALVES}{question}", {"answer": codes[asked]}))
        return of_split(made, split)

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002
        return SingleTurn(task, lambda text: last_number(text, str(task.data["answer"])))


HALVES = "\n\n"
CLOSE = 10  # distance from which a wrong sum earns nothing


class Apart(Organization):
    """Organization that divides the observation between two agents.

    The first agent sees the first half. The second agent sees the other half and the first agent's message. A single
    agent sees both halves.
    """

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        halves = observation.text.split(HALVES)
        if len(agents) == 1:
            halves = [" ".join(halves)]
        done: list[Action] = []
        for agent, half in zip(agents, halves, strict=True):
            done.append(await agent(Observation(half), sees=done))
        return JointAction()


def near(text: str, answer: int) -> Grade:
    """Grade the last number of a text: 1 if it is right, up to 0.3 if it is less than 10 off.

    >>> near("The sum is 12.", 12).reward, near("The sum is 14.", 12).reward, near("I cannot tell.", 12).reward
    (1.0, 0.24, 0.0)
    """
    numbers = NUMBER.findall(text)
    miss = abs(int(numbers[-1]) - answer) if numbers else CLOSE
    return Grade(1.0 if miss == 0 else round(0.3 * max(0.0, 1 - miss / CLOSE), 3), miss == 0)


def last_number(text: str, answer: str) -> Grade:
    """Grade the last number of a text as right or wrong.

    >>> last_number("7 and 5 make 12.", "12").success, last_number("12, for 7 + 5", "12").success
    (True, False)
    """
    numbers = NUMBER.findall(text)
    right = bool(numbers) and numbers[-1].lstrip("0") == answer.lstrip("0")
    return Grade(float(right), right)


def kept(text: str, word: str, most: int) -> Grade:
    """Grade a sentence by the share of rules that it follows.

    >>> kept("Rain is always warm!", "always", 8).reward, kept("Rain, always.", "always", 8).reward
    (1.0, 0.5)
    """
    words = [found.casefold() for found in WORD.findall(text)]
    rules: Sequence[Callable[[], bool]] = (
        lambda: 3 <= len(words) <= most,
        lambda: word in words,
        lambda: bool(words) and "," not in text,
        lambda: text.strip().endswith("!") and sum(text.count(sign) for sign in ".!?") == 1,
    )
    share = sum(rule() for rule in rules) / len(rules)
    return Grade(share, share == 1.0)


def of_split(tasks: Sequence[Task], split: Split) -> list[Task]:
    """Return the tasks of a split, in a fixed random order.

    By their ids, validation and test get a fifth of the tasks each.
    """
    parts: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
    for task in tasks:
        share = int(digest(task.id), 16) % 5
        parts["test" if share == 0 else "validation" if share == 1 else "train"].append(task)
    return sorted(parts[split], key=lambda task: digest(f"order/{task.id}"))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
