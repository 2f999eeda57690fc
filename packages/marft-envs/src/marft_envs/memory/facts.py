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
OBJECTS = ("hat", "lamp", "boat", "bike", "book", "tent", "chair", "clock")
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


class RelationTemplates(NamedTuple):
    """Templates for a kind of fact, with ``{p}`` (person), ``{d}`` (detail) and ``{v}`` (value).

    Args:
        note: short form, with ``{v}`` at the end.
        question: question with ``{v}`` as the answer.
        statements: lines of the person.
        changed_statements: lines of the person for an updated fact.
        cousin_question: question about a person's cousin; "" if none.
        details, values: possible details and values. No two relations share a value.
    """

    note: str
    question: str
    statements: tuple[str, ...]
    changed_statements: tuple[str, ...] = ()
    cousin_question: str = ""
    details: tuple[str, ...] = ()
    values: tuple[str, ...] = ()


RELATIONS = {
    "pet": RelationTemplates(
        note="{p}'s {d} is {v}.", question="What color is {p}'s {d}?", details=ANIMALS, values=COLORS,
        statements=("I have a {v} {d} at home.", "My {d} is {v}, did I say so?", "We got a {d}, a {v} one."),
    ),
    "city": RelationTemplates(
        note="{p} lives in {v}.", question="Where does {p} live?", cousin_question="Where does {p}'s cousin live?",
        values=CITIES,
        statements=("I live in {v}, near the river.", "Home for me is {v}.", "I have lived in {v} for years."),
        changed_statements=("I moved to {v}.", "We left, and I live in {v} now."),
    ),
    "job": RelationTemplates(
        note="{p} is a {v}.", question="What is {p}'s job?", cousin_question="What is {p}'s cousin's job?", values=JOBS,
        statements=("I work as a {v}.", "Being a {v} keeps me busy.", "They pay me as a {v}."),
        changed_statements=("I changed jobs: I am a {v} now.", "Since Monday I work as a {v}."),
    ),
    "food": RelationTemplates(
        note="{p} likes {v}.", question="What food does {p} like?", cousin_question="What food does {p}'s cousin like?",
        values=FOODS, statements=("I like {v} best.", "Nothing beats {v}, I think.", "For me it is always {v}."),
        changed_statements=("I am tired of it: now I like {v} best.", "These days I like {v} more."),
    ),
    "cousin": RelationTemplates(
        note="{p}'s cousin is {v}.", question="Who is {p}'s cousin?", values=PEOPLE,
        statements=("{v} is my cousin.", "You know my cousin, {v}.", "My cousin {v} called."),
    ),
    "event": RelationTemplates(
        note="{p} bought a {d}, {v}.", question="When did {p} buy a {d}?", details=OBJECTS,
        statements=("I bought a {d} today.", "Today I got myself a {d}."),
    ),
}  # fmt: skip
YESTERDAY_STATEMENTS = ("I bought a {d} yesterday.", "Yesterday I got myself a {d}.")
CHANGING_RELATIONS = ("city", "job", "food")
SMALL_TALK = (
    "How was your week?",
    "It rained all day here.",
    "Haha, that is so true.",
    "I slept badly, sorry.",
    "Good to hear from you!",
)
PLAIN_SMALL_TALK = ("{p} says hello.", "{p} is tired.", "{p} laughs.", "{p} asks why.")


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
        return self._fill(RELATIONS[self.relation].note)

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
        return relation.cousin_question.format(p=cousin) if cousin else self._fill(relation.question)

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words in every note of this fact. No other fact has the same words."""
        return tuple(word for word in (self.person, self.detail, self.value) if word)

    def format_line(self, style: Style, today: str, random: Random) -> str:
        """Return the fact's line in the conversation.

        Args:
            style: style of the line.
            today: date of the chunk. An event with another date took place the day before.
            random: source of randomness.
        """
        if style == "plain":
            return self.note.replace(f", {self.value}", "") if self.relation == "event" else self.note
        relation = RELATIONS[self.relation]
        statements = relation.changed_statements if self.changed else relation.statements
        if self.relation == "event" and self.value != today:
            statements = YESTERDAY_STATEMENTS
        return f"{self.person}: {self._fill(random.choice(statements))}"

    def _fill(self, words: str) -> str:
        return words.format(p=self.person, d=self.detail, v=self.value)


def draw_small_talk(style: Style, person: str, random: Random) -> str:
    """Draw a line without a fact."""
    if style == "plain":
        return random.choice(PLAIN_SMALL_TALK).format(p=person)
    return f"{person}: {random.choice(SMALL_TALK)}"


def draw_dates(style: Style, count: int, random: Random) -> list[str]:
    """Draw ascending dates of chunks, at least two days apart, so that no chunk's eve is another chunk's date."""
    if style == "plain":
        return [f"Day {number}" for number in range(1, count + 1)]
    day = date(2023, 1, 1) + timedelta(days=random.randrange(365))
    dates_drawn = []
    for _ in range(count):
        day += timedelta(days=random.randint(2, 9))
        dates_drawn.append(format_date(day))
    return dates_drawn


def format_date(day: date) -> str:
    """Format a date.

    >>> format_date(date(2023, 5, 8))
    '8 May 2023'
    """
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def day_before(day: str) -> str:
    """Return the previous day.

    >>> day_before("1 May 2023")
    '30 April 2023'
    """
    number, month, year = day.split()
    return format_date(date(int(year), MONTHS.index(month) + 1, int(number)) - timedelta(days=1))
