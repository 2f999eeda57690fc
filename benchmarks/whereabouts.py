"""Questions about a story: several agents each know a part of it, and another agent answers.

    one part      Cal is in Oslo. Eve likes rice. Cal bought the lamp. Eve is in Lima.
    the other     Cal gave Eve the lamp. Cal likes soup. Eve is in Bern now.
    the question  Where is the lamp?  (Bern)   or   Who bought the lamp?  (Cal)

In a *pipeline*, the first reader gets the beginning. The second gets the rest and the first one's message. With *split
evidence*, one reader gets what happened to things, the other gets where people are, and neither sees the other's
message. A reader repeats what it read, and adds the current state. A scribe, if there is one, rewrites the message.
Agents look facts up instead of computing them, and new facts replace old ones. The current state does not contain who
bought a thing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from marft.agents.prompt_messages import split_messages
from marft.common.types import Observation, Task
from marft.envs.graded_sessions import Grade, SingleTurn
from marft.envs.scripted_policy import PolicyInput
from marft_envs.generated import GeneratedEnvironment, GeneratedTask

PEOPLE = ("Ann", "Bea", "Cal", "Dan", "Eve", "Fay", "Gus", "Hal")
PLACES = ("Rome", "Oslo", "Lima", "Bern", "Cairo", "Delhi", "Kyoto", "Paris")
THINGS = ("hat", "lamp", "boat", "book", "chair", "clock")
FOODS = ("rice", "soup", "bread", "cake", "fruit", "pasta")
READERS = {"pipeline": ("first", "second"), "split": ("keeper", "watcher")}
SCRIBES = {reader: f"{reader}_scribe" for readers in READERS.values() for reader in readers}
ANSWERER = "answerer"
INSTRUCTIONS = {
    "reader": "You are a reader. Say what you read, and how things stand.",
    "summary": "You are a scribe. Sum up what matters.",
    "record": "You are a scribe. Make a record of it.",
    "answerer": "You are the answerer. Answer the question.",
}
DID, NOW = "did", "now"  # fields of a record
FIELDS = {DID: r"(\w+ (?:bought|gave) [^.;\n]+)[.;]", NOW: r"[Nn]ow: ([^.;\n]+)"}  # their patterns in a message
ANSWER = re.compile(r"Answer: (\w+)")
FACT = re.compile(
    r"(?P<who>\w+) is in (?P<place>\w+)|(?P<buyer>\w+) bought the (?P<bought>\w+)"
    r"|(?P<giver>\w+) gave (?P<taker>\w+) the (?P<given>\w+)|(?P<holder>\w+) has the (?P<held>\w+)"
    r"|[Nn]ow: (?P<state>[^.;\n]+)"
)
ABOUT = re.compile(r"(Where is|Who bought) the (\w+)\?")


def split_read(prompt: str) -> tuple[str, str]:
    """Return a prompt's observation, and the texts of its messages."""
    before, messages = split_messages(prompt)
    return before, "\n\n".join(message.text for message in messages)


@dataclass
class Known:
    """State of a story: the buyer and the holder of each thing, and the place of each person."""

    bought: dict[str, str] = field(default_factory=dict)
    has: dict[str, str] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    last: str = ""  # last event with a thing

    def read(self, text: str) -> Known:
        """Add the facts of a text, in order."""
        for fact in FACT.finditer(text):
            if fact["who"]:
                self.places[fact["who"]] = fact["place"]
            elif fact["buyer"]:
                self.bought[fact["bought"]] = self.has[fact["bought"]] = fact["buyer"]
                self.last = fact.group()
            elif fact["giver"]:
                self.has[fact["given"]] = fact["taker"]
                self.last = fact.group()
            elif fact["holder"]:
                self.has[fact["held"]] = fact["holder"]
            else:
                for entry in fact["state"].split(","):
                    match entry.split():
                        case [thing, person] if thing in THINGS:
                            self.has[thing] = person
                        case [person, place]:
                            self.places[person] = place
        return self

    @property
    def state(self) -> str:
        return ", ".join(f"{a} {b}" for a, b in [*self.has.items(), *self.places.items()])

    def answer(self, what: str, thing: str) -> str:
        """Return the answer; "" if it is unknown."""
        if what == "Who bought":
            return self.bought.get(thing, "")
        return self.places.get(self.has.get(thing, ""), "")


class Whereabouts(GeneratedEnvironment):
    """Stories of people, places and one thing."""

    topology: Literal["pipeline", "split"] = "pipeline"  # how the story is divided among readers

    def generate_task(self, random: Random) -> GeneratedTask:
        """Return a story in two parts, and a question."""
        (buyer, other), thing = random.sample(PEOPLE, 2), random.choice(THINGS)
        people, places = (buyer, other), random.sample(PLACES, 3)
        one = [f"{person} is in {place}." for person, place in zip(people, places, strict=False)]
        one += [f"{buyer} bought the {thing}.", f"{random.choice(people)} likes {random.choice(FOODS)}."]
        random.shuffle(one)
        two = [f"{random.choice(people)} likes {random.choice(FOODS)}."]
        if random.random() < 0.6:
            two.append(f"{buyer} gave {other} the {thing}.")
        two.append(f"{random.choice(people)} is in {places[2]} now.")
        random.shuffle(two)
        what = "Where is" if random.random() < 0.75 else "Who bought"
        question = f"{what} the {thing}?"
        answer = Known().read(" ".join([*one, *two])).answer(what, thing)
        shown = self._shown([one, two])
        data = {"answer": answer, "kind": what, "shown": shown}
        return GeneratedTask(f"{question} {one} {two}", question, data)

    def _shown(self, parts: Sequence[Sequence[str]]) -> dict[str, str]:
        """Return the text that each reader sees."""
        if self.topology == "split":
            lines = [line for part in parts for line in part]
            parts = [
                [line for line in lines if " is in " not in line],
                [line for line in lines if " is in " in line],
            ]
        read = dict(zip(READERS[self.topology], parts, strict=True))
        return {reader: " ".join(part) for reader, part in read.items()}

    def start(self, task: Task, seed: int) -> Session:  # noqa: ARG002  nothing here is random
        return Session(task)

    def script(self, skill: float = 1.0) -> Reading:
        """Return a script that reads and answers well, with this skill."""
        return Reading(skill)


class Session(SingleTurn):
    """Session with one question; the last answer is right or wrong."""

    def __init__(self, task: Task) -> None:
        def grade(text: str) -> Grade:
            given = ANSWER.findall(text)
            right = bool(given) and given[-1] == task.data["answer"]
            return Grade(float(right), right)

        super().__init__(task, grade)

    async def reset(self) -> Observation:
        return Observation(self.task.prompt, views=self.task.data["shown"])


class Reading:
    """Script of every agent of the team.

    An agent that slips says nothing, leaves out the current state, or guesses.

    Args:
        skill: share of good turns of readers and of the answerer. A scribe slips half as often.
    """

    def __init__(self, skill: float) -> None:
        self.skill = skill

    def __call__(self, cue: PolicyInput) -> str:
        what, thing = ABOUT.findall(cue.last_message)[0]
        works, random = cue.random.random() < self.skill, cue.random
        if cue.role == ANSWERER:
            return self._answered(cue.last_message, what, thing, random, works)
        if cue.role in SCRIBES.values():
            return self._written(cue, what, thing, random)
        return self._read(cue.last_message, random, works)

    def _read(self, shown: str, random: Random, works: bool) -> str:
        task, heard = split_read(shown)
        lines = task.partition("\n\n")[2]
        known = Known().read(heard).read(lines)
        if works:
            return f"{lines} Now: {known.state}."
        return random.choice(("I read it all.", lines))

    def _written(self, cue: PolicyInput, what: str, thing: str, random: Random) -> str:
        known = Known().read(split_read(cue.last_message)[1])
        if random.random() > (1 + self.skill) / 2:
            return "It was read."
        if cue.messages[0]["content"] == INSTRUCTIONS["record"]:
            first = what == "Who bought" and thing in known.bought and random.random() < 0.5
            did = f"{known.bought[thing]} bought the {thing}" if first else known.last
            return f"did: {did or 'nothing'}; now: {known.state or 'nothing'}."
        return " ".join(_matters(known, what, thing)) or "Nothing matters."

    def _answered(self, shown: str, what: str, thing: str, random: Random, works: bool) -> str:
        _, heard = split_read(shown)
        known = Known().read(heard)
        answer, holder = known.answer(what, thing), known.has.get(thing, "")
        if what == "Who bought":
            answer = answer or holder
            said = f"{answer} bought the {thing}." if answer else ""
        else:
            said = f"{holder} has the {thing}." if holder else ""
            said += f" {holder} is in {answer}." if answer else ""
        named = [word for word in re.findall(r"\w+", heard) if word in (PEOPLE if what == "Who bought" else PLACES)]
        guess = random.choice(named or (PEOPLE if what == "Who bought" else PLACES))
        if not works:
            return f"At a glance: {guess}."
        return f"{said} Answer: {answer or guess}.".strip()


def _matters(known: Known, what: str, thing: str) -> Iterator[str]:
    """Yield the sentences that matter to a question."""
    holder = known.has.get(thing, "")
    if what == "Who bought":
        if thing in known.bought:
            yield f"{known.bought[thing]} bought the {thing}."
        return
    if holder:
        yield f"{holder} has the {thing}."
    for person in [holder] if holder in known.places else known.places:
        yield f"{person} is in {known.places[person]}."
