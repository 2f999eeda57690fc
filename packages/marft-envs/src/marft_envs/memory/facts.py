"""Facts about fictional people, with their lines, notes and questions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from random import Random
from typing import Literal, NamedTuple

Style = Literal["plain", "full"]
PEOPLE = ("Ann", "Bea", "Cal", "Dan", "Eve", "Fay", "Gus", "Hal", "Ida", "Jon", "Kim", "Leo")
COLORS = ("red", "blue", "green", "black", "white", "brown", "gray", "pink")
ANIMALS = ("cat", "dog", "bird", "fish", "horse", "pig")
CITIES = ("Rome", "Oslo", "Lima", "Bern", "Cairo", "Delhi", "Kyoto", "Paris", "Quito", "Tunis")
JOBS = ("cook", "nurse", "pilot", "baker", "judge", "painter", "driver", "teacher")
FOODS = ("rice", "soup", "bread", "cake", "fruit", "pasta", "cheese", "salad")
THINGS = ("hat", "lamp", "boat", "bike", "book", "tent", "chair", "clock")
MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip


class Relation(NamedTuple):
    """Templates for a kind of fact, with ``{p}`` (person), ``{d}`` (detail) and ``{v}`` (value).

    Args:
        note: short form, with ``{v}`` at the end.
        asked: question with ``{v}`` as the answer.
        told: lines of the person.
        changed: lines of the person for an updated fact.
        whose: question about a person's cousin; "" if none.
        details, values: possible details and values. No two relations share a value.
    """

    note: str
    asked: str
    told: tuple[str, ...]
    changed: tuple[str, ...] = ()
    whose: str = ""
    details: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


RELATIONS = {
    "pet": Relation(
        note="{p}'s {d} is {v}.", asked="What color is {p}'s {d}?", details=ANIMALS, values=COLORS,
        told=("I have a {v} {d} at home.", "My {d} is {v}, did I say so?", "We got a {d}, a {v} one."),
    ),
    "city": Relation(
        note="{p} lives in {v}.", asked="Where does {p} live?", whose="Where does {p}'s cousin live?", values=CITIES,
        told=("I live in {v}, near the river.", "Home for me is {v}.", "I have lived in {v} for years."),
        changed=("I moved to {v}.", "We left, and I live in {v} now."),
    ),
    "job": Relation(
        note="{p} is a {v}.", asked="What is {p}'s job?", whose="What is {p}'s cousin's job?", values=JOBS,
        told=("I work as a {v}.", "Being a {v} keeps me busy.", "They pay me as a {v}."),
        changed=("I changed jobs: I am a {v} now.", "Since Monday I work as a {v}."),
    ),
    "food": Relation(
        note="{p} likes {v}.", asked="What food does {p} like?", whose="What food does {p}'s cousin like?",
        values=FOODS, told=("I like {v} best.", "Nothing beats {v}, I think.", "For me it is always {v}."),
        changed=("I am tired of it: now I like {v} best.", "These days I like {v} more."),
    ),
    "cousin": Relation(
        note="{p}'s cousin is {v}.", asked="Who is {p}'s cousin?", values=PEOPLE,
        told=("{v} is my cousin.", "You know my cousin, {v}.", "My cousin {v} called."),
    ),
    "event": Relation(
        note="{p} bought a {d}, {v}.", asked="When did {p} buy a {d}?", details=THINGS,
        told=("I bought a {d} today.", "Today I got myself a {d}."),
    ),
}  # fmt: skip
YESTERDAY = ("I bought a {d} yesterday.", "Yesterday I got myself a {d}.")
CHANGING = ("city", "job", "food")
TALK = (
    "How was your week?",
    "It rained all day here.",
    "Haha, that is so true.",
    "I slept badly, sorry.",
    "Good to hear from you!",
)
PLAIN_TALK = ("{p} says hello.", "{p} is tired.", "{p} laughs.", "{p} asks why.")


@dataclass(frozen=True, slots=True)
class Fact:
    """Fact about a person: ``detail`` is its topic, ``value`` the answer."""

    relation: str
    person: str
    detail: str
    value: str
    changed: bool = False  # True if it replaces an earlier fact

    @property
    def note(self) -> str:
        """Return the fact's short form."""
        return self._filled(RELATIONS[self.relation].note)

    def question(self, style: Style, cousin: str = "") -> str:
        """Return the question for the value.

        Args:
            style: style of the question.
            cousin: refer to the person as the cousin of this person; "": by name.
        """
        relation = RELATIONS[self.relation]
        if style == "plain":
            person = f"{cousin}'s cousin" if cousin else self.person
            return f"{relation.note.partition('{v}')[0]}?".format(p=person, d=self.detail)
        return relation.whose.format(p=cousin) if cousin else self._filled(relation.asked)

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words in every note of this fact. No other fact has the same words."""
        return tuple(word for word in (self.person, self.detail, self.value) if word)

    def said(self, style: Style, today: str, random: Random) -> str:
        """Return the fact's line in the conversation.

        Args:
            style: style of the line.
            today: date of the chunk. An event with another date took place the day before.
            random: source of randomness.
        """
        if style == "plain":
            return self.note.replace(f", {self.value}", "") if self.relation == "event" else self.note
        relation = RELATIONS[self.relation]
        told = relation.changed if self.changed else relation.told
        if self.relation == "event" and self.value != today:
            told = YESTERDAY
        return f"{self.person}: {self._filled(random.choice(told))}"

    def _filled(self, words: str) -> str:
        return words.format(p=self.person, d=self.detail, v=self.value)


def talk(style: Style, person: str, random: Random) -> str:
    """Draw a line without a fact."""
    if style == "plain":
        return random.choice(PLAIN_TALK).format(p=person)
    return f"{person}: {random.choice(TALK)}"


def dates(style: Style, count: int, random: Random) -> list[str]:
    """Draw ascending dates of chunks, at least two days apart, so that no chunk's eve is another chunk's date."""
    if style == "plain":
        return [f"Day {number}" for number in range(1, count + 1)]
    day = date(2023, 1, 1) + timedelta(days=random.randrange(365))
    found = []
    for _ in range(count):
        day += timedelta(days=random.randint(2, 9))
        found.append(written(day))
    return found


def written(day: date) -> str:
    """Format a date.

    >>> written(date(2023, 5, 8))
    '8 May 2023'
    """
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def day_before(day: str) -> str:
    """Return the previous day.

    >>> day_before("1 May 2023")
    '30 April 2023'
    """
    number, month, year = day.split()
    return written(date(int(year), MONTHS.index(month) + 1, int(number)) - timedelta(days=1))
