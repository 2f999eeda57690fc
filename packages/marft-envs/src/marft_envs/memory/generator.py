"""Generation of conversations with questions, from facts about fictional people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from random import Random
from typing import Literal, NamedTuple

from marft.common.errors import UserError
from marft_envs.memory.conversations import NOT_MENTIONED, Chunk, Kind, Question

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
        UserError: the people have too few facts for the number of questions.
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
        raise UserError(
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
