"""Generation of conversations with questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import NamedTuple

from marft_envs.memory.conversations import Chunk, Kind, Question
from marft_envs.memory.facts import (
    CHANGING_RELATIONS,
    PEOPLE,
    RELATIONS,
    Fact,
    Style,
    day_before,
    draw_dates,
    draw_small_talk,
)
from marft_envs.memory.grading import NOT_MENTIONED

MAX_ATTEMPTS = 1000  # maximum drafts


@dataclass(frozen=True)
class ConversationShape:
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


class _DraftQuestion(NamedTuple):
    """Question with its facts: the fact that answers it or was never mentioned, and the necessary facts."""

    kind: Kind
    text: str
    answer_fact: Fact
    needed_facts: tuple[Fact, ...]


@dataclass
class _ConversationBuilder:
    """Conversation in progress: facts in order, without dates."""

    style: Style
    people: Sequence[str]
    random: Random
    facts: list[Fact] = field(default_factory=list)
    questions: list[_DraftQuestion] = field(default_factory=list)
    used: set[tuple[str, str, str]] = field(default_factory=set)  # (person, relation, detail) already used or excluded

    def draw_fact(self, relation: str, person: str = "") -> Fact | None:
        """Draw an unused fact for a relation; None if no draw succeeds."""
        relation_templates = RELATIONS[relation]
        for _ in range(50):
            chosen_person = person or self.random.choice(self.people)
            detail = self.random.choice(relation_templates.details) if relation_templates.details else ""
            if (chosen_person, relation, detail) not in self.used:
                values = [value for value in relation_templates.values if value != chosen_person]
                if relation == "cousin":
                    values = [value for value in values if value in self.people]
                self.used.add((chosen_person, relation, detail))
                return Fact(relation, chosen_person, detail, self.random.choice(values) if values else "")
        return None

    def draw_any_fact(self) -> Fact | None:
        """Draw an unused fact for any relation; None if no draw succeeds."""
        relations = self.random.sample(tuple(RELATIONS), len(RELATIONS))
        return next((fact for relation in relations if (fact := self.draw_fact(relation))), None)

    def add_question(self, kind: Kind) -> None:
        """Add a question with its facts. Nothing is added if no unused fact is found."""
        if kind == "multi":
            cousin = self.draw_fact("cousin")
            second_fact = self.draw_fact(self.random.choice(CHANGING_RELATIONS), cousin.value) if cousin else None
            if cousin and second_fact:
                self.facts += [cousin, second_fact]
                text = second_fact.question(self.style, cousin.person)
                self.questions.append(_DraftQuestion(kind, text, second_fact, (cousin, second_fact)))
            return
        relation = {"temporal": "event", "update": self.random.choice(CHANGING_RELATIONS)}.get(kind)
        fact = self.draw_fact(relation or self.random.choice(("pet", "city", "job", "food", "cousin")))
        if fact is None:
            return
        if kind == "update":
            self.facts.append(fact)
            other_values = [value for value in RELATIONS[fact.relation].values if value != fact.value]
            fact = replace(fact, value=self.random.choice(other_values), changed=True)
        if kind != "abstention":
            self.facts.append(fact)
        self.questions.append(
            _DraftQuestion(kind, fact.question(self.style), fact, () if kind == "abstention" else (fact,))
        )


class GeneratedConversation(NamedTuple):
    """Conversation, questions and stated facts."""

    chunks: list[Chunk]
    questions: list[Question]
    facts: list[Fact]


def generate_conversation(shape: ConversationShape, random: Random) -> GeneratedConversation:
    """Generate a conversation with questions.

    An updated fact comes after its old version. Questions about a cousin never concern a fact that changes.

    Args:
        shape: size and style.
        random: source of randomness.

    Raises:
        ValueError: the people have too few facts for the number of questions.
    """
    capacity = shape.days * shape.facts
    builders = (_draw_questions(shape, random) for _ in range(MAX_ATTEMPTS))
    builder = next(
        (
            candidate
            for candidate in builders
            if len(candidate.facts) <= capacity and len(candidate.questions) == shape.questions
        ),
        None,
    )
    if builder is None:
        raise ValueError(
            f"environment: {shape.people} people have too few facts for {shape.questions} questions of the kinds "
            f"{', '.join(shape.kinds)}; ask fewer, of more kinds, or about more people"
        )
    while len(builder.facts) < capacity:
        fact = builder.draw_any_fact()
        if fact is None:
            break
        builder.facts.append(fact)
    lines_by_fact = _assign_lines(builder.facts, capacity, random)
    days = draw_dates(shape.style, shape.days, random)
    dated_facts = {
        fact: _date_event(fact, days[place // shape.facts], shape.style, random)
        for fact, place in lines_by_fact.items()
    }
    by_session: list[list[str]] = [[] for _ in days]
    for fact, place in sorted(lines_by_fact.items(), key=lambda pair: pair[1]):
        session = place // shape.facts
        by_session[session].append(dated_facts[fact].format_line(shape.style, days[session], random))
    for lines in by_session:
        for _ in range(shape.talk):
            lines.insert(
                random.randint(0, len(lines)), draw_small_talk(shape.style, random.choice(builder.people), random)
            )
    chunks = [Chunk(day, tuple(lines)) for day, lines in zip(days, by_session, strict=True)]
    questions = list(_build_questions(builder, dated_facts))
    random.shuffle(questions)
    return GeneratedConversation(chunks, questions, list(dated_facts.values()))


def _draw_questions(shape: ConversationShape, random: Random) -> _ConversationBuilder:
    """Draw the questions with their facts."""
    builder = _ConversationBuilder(shape.style, random.sample(PEOPLE, shape.people), random)
    kinds = list(shape.kinds)
    random.shuffle(kinds)
    for number in range(shape.questions):
        builder.add_question(kinds[number % len(kinds)])
    return builder


def _assign_lines(facts: Sequence[Fact], capacity: int, random: Random) -> dict[Fact, int]:
    """Assign each fact a line number among all fact lines."""
    lines_by_fact = dict(zip(facts, random.sample(range(capacity), len(facts)), strict=True))
    for fact in facts:
        if fact.changed:
            person_relation = (fact.person, fact.relation)
            old = next(
                fact_option
                for fact_option in facts
                if (fact_option.person, fact_option.relation) == person_relation and not fact_option.changed
            )
            lines_by_fact[old], lines_by_fact[fact] = sorted((lines_by_fact[old], lines_by_fact[fact]))
    return lines_by_fact


def _date_event(fact: Fact, day: str, style: Style, random: Random) -> Fact:
    """Set an event's date: the date of its chunk, or the day before."""
    if fact.relation != "event":
        return fact
    return replace(fact, value=day_before(day) if style == "full" and random.random() < 0.5 else day)


def _build_questions(builder: _ConversationBuilder, dated_facts: dict[Fact, Fact]) -> Iterator[Question]:
    for question in builder.questions:
        answer = dated_facts[question.answer_fact].value if question.needed_facts else NOT_MENTIONED
        yield Question(
            question.kind, question.text, answer, tuple(dated_facts[fact].words for fact in question.needed_facts)
        )
