"""Conversations with notes and questions, generated or from a benchmark file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from random import Random
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.environment import Split
from marft.agents.memories.store import open_store
from marft.common.types import Task
from marft.config.paths import resolve_recipe_path
from marft.config.plugin_types import OptionalMemoryPlugin
from marft.config.settings import Count, Fraction, Names, NonEmptyString, SmallCount, did_you_mean
from marft.envs.scripted_policy import ScriptedPolicy
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft_envs.memory.conversations import KINDS, Chunk, Question
from marft_envs.memory.facts import PEOPLE, Style
from marft_envs.memory.files import FileConversation, Layout, build_tasks, read_conversations
from marft_envs.memory.generator import ConversationShape, generate_conversation
from marft_envs.memory.grading import Grading
from marft_envs.memory.script import MemoryScript
from marft_envs.memory.session import Coverage, MemoryRules, MemorySession, Retrieval
from marft_envs.memory.store_session import StoreSession

MAX_FACTS = 8  # maximum facts per person, on average


def _resolve_file(path: str, info: ValidationInfo) -> str:
    return resolve_recipe_path(path, info.context) if path else path


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
    path: Annotated[str, AfterValidator(_resolve_file)] = ""  # benchmark file; default: generated conversations
    layout: Layout = "locomo"  # layout of the file: "locomo" (locomo10.json) or "longmemeval"
    style: Style = "full"  # style of generated lines; "plain" uses few words, for tiny models
    people: Annotated[int, Field(ge=2, le=len(PEOPLE))] = 4  # number of people in a generated conversation
    # number of days in a generated conversation; each day is read in one step
    days: Annotated[int, Field(ge=1, le=1000)] = 8
    facts: Annotated[int, Field(ge=1, le=100)] = 3  # facts per day
    filler_lines: Annotated[int, Field(ge=0, le=1000)] = 6  # lines per day without a fact
    questions: Annotated[int, Field(ge=1, le=100)] = 5  # number of questions after the conversation
    kinds: Names = KINDS  # kinds of questions: "single", "multi" (two facts), "temporal", "update", "abstention"
    lines: SmallCount = 20  # maximum lines per step, for a session from a file
    # Memory system with its keys, instead of notes. Default: none. It is written line by line, and read for each
    # question.
    store: OptionalMemoryPlugin = None
    # Maximum characters of the notes; the excess is cut. With a memory system: maximum tokens read per question.
    budget: Count = 800
    top_k: Annotated[int, Field(ge=1, le=100)] = 3  # maximum notes picked per question
    # text: the retriever sees the notes and answers with numbers. choices: it chooses from sets of numbers. words: it
    # sees only the question, and answers with words that a note must contain.
    retrieval: Retrieval = "text"
    grading: Grading = "exact"  # grading of answers: "exact", "contains" or "f1"
    threshold: Fraction = 1.0  # minimum score of a right answer
    local_weight: Fraction = 0.0  # weight of the writer's and the retriever's own rewards; 1 in CoMAM
    # Facts that count for the writer's reward. asked: facts that the questions need; the writer does not know the
    # questions. all: all facts.
    coverage: Coverage = "asked"
    # Role that takes notes. With a memory system, "" stores the lines unchanged.
    writer: str = "writer"
    # Role that picks notes; "": the answerer sees all notes. With a memory system, the role writes the query; "": the
    # question is the query.
    retriever: str = "retriever"
    answerer: NonEmptyString = "answerer"  # role that answers

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
        for key in ("writer", "retriever", "answerer"):
            role = getattr(self, key)
            if role and role not in roles:
                yield f"environment.{key}: no agent is called {role!r}{did_you_mean(role, roles)}"

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
        rules = MemoryRules(
            writer=self.writer,
            retriever=self.retriever,
            answerer=self.answerer,
            budget=self.budget,
            top_k=self.top_k,
            retrieval=self.retrieval,
            grading=self.grading,
            local_weight=self.local_weight,
            threshold=self.threshold,
        )
        conversation_name = task.data.get("conversation")
        chunks = (
            self._conversations[conversation_name].chunks
            if conversation_name
            else tuple(map(Chunk.from_dict, task.data["chunks"]))
        )
        questions = tuple(map(Question.from_dict, task.data["questions"]))
        if self.store is not None:
            return StoreSession(chunks, questions, rules, open_store(self.store), self.store.stores_edits)
        facts = [tuple(words) for words in task.data["said"]] if self.coverage == "all" else None
        return MemorySession(chunks, questions, rules, facts)

    def script(self, skill: float = 1.0) -> ScriptedPolicy:
        """Return the scripted policy for generated conversations. The role ``solver`` writes and answers."""
        return MemoryScript(skill, self.style)
