"""Generation of conversations with questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from marft_envs.memory.conversations import Chunk, Kind, Question
from marft_envs.memory.facts import (
    CHANGING,
    PEOPLE,
    RELATIONS,
    Fact,
    Style,
    dates,
    day_before,
    talk,
)
from marft_envs.memory.grading import NOT_MENTIONED

PATIENCE = 1000  # maximum drafts


@dataclass(frozen=True)
class Shape:
    """Size and style for a conversation.

    Args:
        style: style of the lines.
        people: number of people.
        days: number of chunks.
        facts, talk: lines of a chunk with a fact, and without one.
        questions: number of questions.
        kinds: kinds of questions.
    """

    style: Style
    people: int
    days: int
    facts: int
    talk: int
    questions: int
    kinds: tuple[Kind, ...]


class _Asked(NamedTuple):
    """Question with its facts: the fact that answers it or was never mentioned, and the necessary facts."""

    kind: Kind
    text: str
    about: Fact
    takes: tuple[Fact, ...]


@dataclass
class _Draft:
    """Conversation in progress: facts in order, without dates."""

    style: Style
    people: Sequence[str]
    random: Random
    facts: list[Fact] = field(default_factory=list)
    asked: list[_Asked] = field(default_factory=list)
    known: set[tuple[str, str, str]] = field(default_factory=set)  # (person, relation, detail) already used or excluded

    def new(self, relation: str, person: str = "") -> Fact | None:
        """Draw an unused fact for a relation; None if no draw succeeds."""
        about = RELATIONS[relation]
        for _ in range(50):
            who = person or self.random.choice(self.people)
            detail = self.random.choice(about.details) if about.details else ""
            if (who, relation, detail) not in self.known:
                values = [value for value in about.values if value != who]
                if relation == "cousin":
                    values = [value for value in values if value in self.people]
                self.known.add((who, relation, detail))
                return Fact(relation, who, detail, self.random.choice(values) if values else "")
        return None

    def any_new(self) -> Fact | None:
        """Draw an unused fact for any relation; None if no draw succeeds."""
        relations = self.random.sample(tuple(RELATIONS), len(RELATIONS))
        return next((fact for relation in relations if (fact := self.new(relation))), None)

    def ask(self, kind: Kind) -> None:
        """Add a question with its facts. Nothing is added if no unused fact is found."""
        if kind == "multi":
            cousin = self.new("cousin")
            then = self.new(self.random.choice(CHANGING), cousin.value) if cousin else None
            if cousin and then:
                self.facts += [cousin, then]
                text = then.question(self.style, cousin.person)
                self.asked.append(_Asked(kind, text, then, (cousin, then)))
            return
        relation = {"temporal": "event", "update": self.random.choice(CHANGING)}.get(kind)
        fact = self.new(relation or self.random.choice(("pet", "city", "job", "food", "cousin")))
        if fact is None:
            return
        if kind == "update":
            self.facts.append(fact)
            others = [value for value in RELATIONS[fact.relation].values if value != fact.value]
            fact = replace(fact, value=self.random.choice(others), changed=True)
        if kind != "abstention":
            self.facts.append(fact)
        self.asked.append(_Asked(kind, fact.question(self.style), fact, () if kind == "abstention" else (fact,)))


class Conversation(NamedTuple):
    """Conversation, questions and stated facts."""

    chunks: list[Chunk]
    questions: list[Question]
    said: list[Fact]


def draw(shape: Shape, random: Random) -> Conversation:
    """Generate a conversation with questions.

    An updated fact comes after its old version. Questions about a cousin never concern a fact that changes.

    Args:
        shape: size and style.
        random: source of randomness.

    Raises:
        ValueError: the people have too few facts for the number of questions.
    """
    room = shape.days * shape.facts
    drafts = (_asked(shape, random) for _ in range(PATIENCE))
    draft = next((one for one in drafts if len(one.facts) <= room and len(one.asked) == shape.questions), None)
    if draft is None:
        raise ValueError(
            f"environment: {shape.people} people have too few facts for {shape.questions} questions of the kinds "
            f"{', '.join(shape.kinds)}; ask fewer, of more kinds, or about more people"
        )
    while len(draft.facts) < room:
        fact = draft.any_new()
        if fact is None:
            break
        draft.facts.append(fact)
    places = _placed(draft.facts, room, random)
    days = dates(shape.style, shape.days, random)
    dated = {fact: _dated(fact, days[place // shape.facts], shape.style, random) for fact, place in places.items()}
    by_session: list[list[str]] = [[] for _ in days]
    for fact, place in sorted(places.items(), key=lambda pair: pair[1]):
        session = place // shape.facts
        by_session[session].append(dated[fact].said(shape.style, days[session], random))
    for lines in by_session:
        for _ in range(shape.talk):
            lines.insert(random.randint(0, len(lines)), talk(shape.style, random.choice(draft.people), random))
    chunks = [Chunk(day, tuple(lines)) for day, lines in zip(days, by_session, strict=True)]
    questions = list(_questions(draft, dated))
    random.shuffle(questions)
    return Conversation(chunks, questions, list(dated.values()))


def _asked(shape: Shape, random: Random) -> _Draft:
    """Draw the questions with their facts."""
    draft = _Draft(shape.style, random.sample(PEOPLE, shape.people), random)
    kinds = list(shape.kinds)
    random.shuffle(kinds)
    for number in range(shape.questions):
        draft.ask(kinds[number % len(kinds)])
    return draft


def _placed(facts: Sequence[Fact], room: int, random: Random) -> dict[Fact, int]:
    """Assign each fact a line number among all fact lines."""
    places = dict(zip(facts, random.sample(range(room), len(facts)), strict=True))
    for fact in facts:
        if fact.changed:
            about = (fact.person, fact.relation)
            old = next(one for one in facts if (one.person, one.relation) == about and not one.changed)
            places[old], places[fact] = sorted((places[old], places[fact]))
    return places


def _dated(fact: Fact, day: str, style: Style, random: Random) -> Fact:
    """Set an event's date: the date of its chunk, or the day before."""
    if fact.relation != "event":
        return fact
    return replace(fact, value=day_before(day) if style == "full" and random.random() < 0.5 else day)


def _questions(draft: _Draft, dated: dict[Fact, Fact]) -> Iterator[Question]:
    for asked in draft.asked:
        answer = dated[asked.about].value if asked.takes else NOT_MENTIONED
        yield Question(asked.kind, asked.text, answer, tuple(dated[fact].words for fact in asked.takes))
