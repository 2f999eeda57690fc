"""Conversations with notes and questions, generated or from a benchmark file, and their scripted policy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Annotated, ClassVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.memories.store import open_store
from marft.common.types import Task
from marft.config.interfaces.environment import Split
from marft.config.interfaces.memory import MemorySystem
from marft.config.paths import AbsolutePath
from marft.config.settings import Count, Fraction, Names, NonEmptyString, SmallCount, did_you_mean
from marft.envs.scripted_policy import PolicyInput, ScriptedPolicy
from marft_envs.generated import GeneratedEnvironment, GeneratedTask, describe_unknown_roles
from marft_envs.memory.conversations import KINDS, NOT_MENTIONED, Chunk, Grading, Question
from marft_envs.memory.files import FileConversation, Layout, build_tasks, read_conversations
from marft_envs.memory.generator import (
    PEOPLE,
    RELATIONS,
    YESTERDAY_STATEMENTS,
    ConversationShape,
    Fact,
    Style,
    day_before,
    generate_conversation,
)
from marft_envs.memory.session import NOTHING_TEXT, QUESTION_PREFIX, Coverage, MemorySession, Retrieval, StoreSession

_NOTE = re.compile(r"^(\d+): (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class MemoryScript:
    """Scripted ``writer``, ``retriever`` and ``answerer``; ``solver`` writes and answers.

    Args:
        skill: probability of playing a turn well.
        style: style of the conversation.
    """

    skill: float
    style: Style

    def __call__(self, cue: PolicyInput) -> str:
        """Return the output for an agent's turn."""
        is_good = cue.random.random() < self.skill
        observation = cue.last_message
        preceding, _, question = observation.rpartition("\n\n")
        if not question.startswith(QUESTION_PREFIX):
            return self._write_notes(observation) if is_good else _random_note(observation, cue.random)
        question = question.removeprefix(QUESTION_PREFIX)
        if cue.role == "retriever" and not preceding:
            return self._search_words(question) if is_good else cue.random.choice(re.findall(r"\w+", question))
        if cue.role == "retriever":
            numbered = [note for _, note in _NOTE.findall(preceding)]
            numbers = self._pick_notes(question, numbered) if is_good else _random_pick(len(numbered), cue.random)
            picked = " ".join(str(number) for number in numbers) or "none"
            return picked if not cue.options or picked in cue.options else cue.options[0]
        notes = [] if preceding == NOTHING_TEXT else preceding.splitlines()
        return self._give_answer(question, notes) if is_good else _random_answer(notes, cue.random)

    def _write_notes(self, observation: str) -> str:
        """Return a note for each fact in a chunk, replacing an outdated note."""
        chunk_text, _, note_text = observation.rpartition("\n\nNotes (")
        day, *lines = chunk_text.rpartition("\n\n")[2].splitlines()
        notes = _NOTE.findall(note_text)
        written = []
        for line in lines:
            fact = parse_fact(line, day.removesuffix("."), self.style)
            if fact is None:
                continue
            matching = [number for number, note in notes if _fact_key(note) == _fact_key(fact.note)]
            written.append(f"{matching[0]}: {fact.note}" if matching else fact.note)
        return "\n".join(written) or "nothing"

    def _parse_note(self, note: str) -> Fact | None:
        """Parse a fact from a note, or from a dated line in the conversation."""
        day, _, line = note.partition(": ")
        return _parse_fact_note(note) or (parse_fact(line, day, self.style) if line else None)

    def _answer_notes(self, question: str, notes: Sequence[str]) -> list[tuple[int, Fact]]:
        """Return the notes that answer a question, by number, latest version only.

        If two notes are needed, the second has the answer.
        """
        facts = [(number, fact) for number, note in enumerate(notes, 1) if (fact := self._parse_note(note))]
        direct = [pair for pair in facts if pair[1].question(self.style) == question]
        if direct:
            return direct[-1:]
        for cousin in facts:
            if cousin[1].relation == "cousin":
                for second in reversed(facts):
                    if (
                        second[1].person == cousin[1].value
                        and second[1].question(self.style, cousin[1].person) == question
                    ):
                        return [cousin, second]
        return []

    def _pick_notes(self, question: str, notes: Sequence[str]) -> list[int]:
        return sorted(number for number, _ in self._answer_notes(question, notes))

    def _search_words(self, question: str) -> str:
        """Return search words for the note that answers a question, as far as the question contains them."""
        for relation in RELATIONS.values():
            note = relation.note.partition("{v}")[0]
            groups = _match_template(f"{note}?" if self.style == "plain" else relation.question, question)
            if groups:
                return note.format(p=groups["p"], d=groups.get("d", "")).rstrip(", ")
        return question.partition("'s cousin")[0].rpartition(" ")[2]

    def _give_answer(self, question: str, notes: Sequence[str]) -> str:
        answer_notes = self._answer_notes(question, notes)
        return answer_notes[-1][1].value if answer_notes else NOT_MENTIONED


def parse_fact(line: str, day: str, style: Style) -> Fact | None:
    """Parse the fact in a dated line; None without a fact."""
    if style == "plain":
        return _parse_fact_note(line) or _parse_fact_note(line.replace(".", f", {day}."))
    person, _, words = line.partition(": ")
    for name, relation in RELATIONS.items():
        for template in (
            *relation.statements,
            *relation.changed_statements,
            *(YESTERDAY_STATEMENTS if name == "event" else ()),
        ):
            groups = _match_template(template, words)
            if groups:
                date = day_before(day) if template in YESTERDAY_STATEMENTS else day
                return Fact(name, person, groups.get("d", ""), groups.get("v", date))
    return None


def _match_template(template: str, words: str) -> dict[str, str] | None:
    """Match a template; return its placeholders, or None without a match."""
    pattern = re.escape(template)
    for place, kind in (("p", r"\w+"), ("d", r"\w+"), ("v", r"[\w ]+")):
        escaped = re.escape(f"{{{place}}}")
        pattern = pattern.replace(escaped, f"(?P<{place}>{kind})", 1)
    match = re.fullmatch(pattern, words)
    return match.groupdict() if match else None


def _parse_fact_note(note: str) -> Fact | None:
    """Parse the fact in a note; None without a fact."""
    for name, relation in RELATIONS.items():
        groups = _match_template(relation.note, note)
        is_known = groups and (not relation.values or groups["v"] in relation.values)
        if groups and is_known and (not relation.details or groups["d"] in relation.details):
            return Fact(name, groups["p"], groups.get("d", ""), groups["v"])
    return None


def _fact_key(note: str) -> tuple[str, str, str] | None:
    fact = _parse_fact_note(note)
    return (fact.person, fact.relation, fact.detail) if fact else None


def _random_note(observation: str, random: Random) -> str:
    """Imitate a weak writer: note a random line."""
    chunk_text = observation.rpartition("\n\nNotes (")[0].rpartition("\n\n")[2]
    lines = chunk_text.splitlines()[1:]
    return random.choice(lines) if lines else "nothing"


def _random_pick(count: int, random: Random) -> list[int]:
    """Imitate a weak retriever: pick a random note."""
    return [random.randint(1, count)] if count else []


def _random_answer(notes: Sequence[str], random: Random) -> str:
    """Imitate a weak answerer: say a note's last word, or abstain."""
    words = [note.rstrip(".").split()[-1] for note in notes if note.rstrip(".")]
    return random.choice([*words, NOT_MENTIONED])


MAX_FACTS = 8  # maximum facts per person, on average


class Memory(GeneratedEnvironment):
    """Conversation memory with a budget for notes.

    A writer reads a conversation in chunks and keeps notes with at most ``budget`` characters. Then a retriever picks
    notes for each question, and an answerer answers from these notes alone. The reward is the fraction of right
    answers. With ``local_weight``, writer and retriever get their own rewards, as in CoMAM. The writer earns the
    fraction of facts in its notes, counting needed facts or all facts. The retriever earns the fraction of needed facts
    in the notes that it picks.
    """

    stream: ClassVar[str] = "Memory"
    relays_messages: ClassVar[bool] = True
    controls_turns: ClassVar[bool] = True
    path: AbsolutePath = Field(default="", description="benchmark file; default: generated conversations")
    layout: Layout = Field(
        default="locomo", description='layout of the file: "locomo" (locomo10.json) or "longmemeval"'
    )
    style: Style = Field(
        default="full", description='style of generated lines; "plain" uses few words, for tiny models'
    )
    people: Annotated[int, Field(ge=2, le=len(PEOPLE))] = Field(
        default=4, description="number of people in a generated conversation"
    )
    days: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=8, description="number of days in a generated conversation; one step reads one day"
    )
    facts: Annotated[int, Field(ge=1, le=100)] = Field(default=3, description="facts per day")
    filler_lines: Annotated[int, Field(ge=0, le=1000)] = Field(default=6, description="lines per day without a fact")
    questions: Annotated[int, Field(ge=1, le=100)] = Field(
        default=5, description="number of questions after the conversation"
    )
    kinds: Names = Field(
        default=KINDS,
        description='kinds of questions: "single", "multi" (two facts), "temporal", "update", "abstention"',
    )
    lines: SmallCount = Field(default=20, description="maximum lines per step, for a session from a file")
    store: MemorySystem | None = Field(
        default=None,
        description="memory system with its keys, instead of notes; written line by line, and read for each question",
    )
    budget: Count = Field(
        default=800,
        description=(
            "maximum characters of the notes; longer notes are cut. With a memory system: maximum tokens read per "
            "question."
        ),
    )
    top_k: Annotated[int, Field(ge=1, le=100)] = Field(default=3, description="maximum notes picked per question")
    retrieval: Retrieval = Field(
        default="text",
        description=(
            "text: the retriever sees the notes and answers with numbers; choices: chooses from sets of numbers; "
            "words: sees only the question, and answers with words that a note must contain"
        ),
    )
    grading: Grading = Field(default="exact", description='grading of answers: "exact", "contains" or "f1"')
    threshold: Fraction = Field(default=1.0, description="minimum score of a right answer")
    local_weight: Fraction = Field(
        default=0.0, description="weight of the writer's and the retriever's own rewards; 1 in CoMAM"
    )
    coverage: Coverage = Field(
        default="asked",
        description=(
            "facts that count for the writer's reward; asked: facts needed by the questions, unknown to the writer; "
            "all: every fact"
        ),
    )
    writer: str = Field(
        default="writer", description='role that takes notes; with a memory system, "" stores the lines unchanged'
    )
    retriever: str = Field(
        default="retriever",
        description=(
            'role that picks notes; "": the answerer sees every note. With a memory system, the role writes the query; '
            '"": the question is the query.'
        ),
    )
    answerer: NonEmptyString = Field(default="answerer", description="role that answers")

    @model_validator(mode="after")
    def _check_settings(self) -> Memory:
        for kind in self.kinds:
            if kind not in KINDS:
                hint = did_you_mean(kind, KINDS)
                raise PydanticCustomError("kinds", "kinds: no question is {kind}{hint}", {"kind": kind, "hint": hint})
        if self.store is None and not self.writer:
            raise PydanticCustomError("writer", "writer: nobody keeps notes; name a role, or give a store")
        if self.store is not None and self.retriever and self.retrieval != "words":
            raise PydanticCustomError(
                "retrieval", "retrieval: a store is asked in words; set it to 'words', or retriever to ''"
            )
        if not self.kinds:
            raise PydanticCustomError("kinds", "kinds: names none; leave it out for all")
        if self.store is not None and self.coverage == "all":
            raise PydanticCustomError("coverage", "coverage: with a store, what is read counts; leave it at 'asked'")
        if self.path and self.coverage == "all":
            raise PydanticCustomError("coverage", "coverage: facts of a file are not known, but for what is asked")
        fact_lines, max_facts = self.days * self.facts, self.people * MAX_FACTS
        if not self.path and not 2 * self.questions <= fact_lines <= max_facts:
            raise PydanticCustomError(
                "facts",
                "days × facts is {room}: it must be at least {least}, two facts a question, and at most {most}, "
                "{each} a person",
                {"room": fact_lines, "least": 2 * self.questions, "most": max_facts, "each": MAX_FACTS},
            )
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each missing role."""
        named = {"writer": self.writer, "retriever": self.retriever, "answerer": self.answerer}
        return describe_unknown_roles({key: (role,) for key, role in named.items() if role}, roles)

    @cached_property
    def _conversations(self) -> dict[str, FileConversation]:
        return {
            conversation.name: conversation for conversation in read_conversations(self.path, self.layout, self.lines)
        }

    @cached_property
    def _file_tasks(self) -> dict[Split, list[Task]]:
        tasks_found = build_tasks(
            list(self._conversations.values()),
            self.questions,
            self.kinds,
            retrieved=self.retriever != "",
            written=self.writer != "",
            path=self.path,
        )
        limits = {"train": self.train_tasks, "validation": self.held_out_tasks, "test": self.held_out_tasks}
        return {split: tasks[: limits[split]] for split, tasks in tasks_found.items()}

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks for a split. Splits from a file share no conversation.

        Raises:
            ValueError: the file cannot be read, or has too few conversations.
        """
        return self._file_tasks[split] if self.path else super().tasks(split)

    def demonstrations(self) -> Iterator[Task]:
        """Yield generated conversations outside every split; empty for a file."""
        return iter(()) if self.path else super().demonstrations()

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a conversation. Its content is its facts and its questions."""
        shape = ConversationShape(
            style=self.style,
            people=self.people,
            days=self.days,
            facts=self.facts,
            talk=self.filler_lines,
            questions=self.questions,
            kinds=tuple(kind for kind in KINDS if kind in self.kinds),
        )
        chunks, questions, facts = generate_conversation(shape, random)
        content = json.dumps([sorted(fact.note for fact in facts), sorted(question.text for question in questions)])
        data = {
            "chunks": [chunk.to_dict() for chunk in chunks],
            "questions": [question.to_dict() for question in questions],
            "fewest_steps": (len(chunks) if self.writer else 0) + len(questions) * (2 if self.retriever else 1),
        }
        if self.coverage == "all":
            data["said"] = [list(fact.words) for fact in facts]
        pieces = [*(chunk.text for chunk in chunks), "\n".join(question.text for question in questions)]
        return GeneratedTask(content, "\n\n".join(pieces), data)

    def start(self, task: Task, seed: int) -> MemorySession | StoreSession:  # noqa: ARG002  nothing here is random
        """Create a session, with notes or with a memory system."""
        conversation_name = task.data.get("conversation")
        chunks = (
            self._conversations[conversation_name].chunks
            if conversation_name
            else tuple(map(Chunk.from_dict, task.data["chunks"]))
        )
        questions = tuple(map(Question.from_dict, task.data["questions"]))
        if self.store is not None:
            return StoreSession(chunks, questions, self, open_store(self.store), self.store.stores_edits)
        facts = [tuple(words) for words in task.data["said"]] if self.coverage == "all" else None
        return MemorySession(chunks, questions, self, facts)

    def script(self, skill: float = 1.0) -> ScriptedPolicy:
        """Return the scripted policy for generated conversations. The role ``solver`` writes and answers."""
        return MemoryScript(skill, self.style)
