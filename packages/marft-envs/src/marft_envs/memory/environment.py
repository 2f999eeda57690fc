"""Conversations that are noted down under a budget and asked about afterwards: invented ones, or those of a file."""

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
from marft.config.folders import from_recipe
from marft.config.parts import MaybeMemoryPlugin
from marft.config.settings import Count, Few, Filled, Fraction, Names, did_you_mean
from marft.envs.scripts import Script
from marft_envs.drawn import Drawing, Drawn
from marft_envs.memory.conversations import KINDS, Chunk, Question
from marft_envs.memory.drawing import Shape, draw
from marft_envs.memory.facts import PEOPLE, Style
from marft_envs.memory.files import Layout, Recorded, read_conversations, tasks_by_split
from marft_envs.memory.grading import Grading
from marft_envs.memory.script import Rememberer
from marft_envs.memory.session import Coverage, MemorySession, Retrieval, Rules
from marft_envs.memory.stored import StoredSession

MOST_FACTS = 8  # of a person, on the average


def _file(path: str, info: ValidationInfo) -> str:
    return from_recipe(path, info.context) if path else path


class Memory(Drawn):
    """A writer reads a conversation piece by piece and keeps notes of at most ``budget`` characters; afterwards a
    retriever picks notes for each question, and an answerer answers from those alone. The reward is the share of right
    answers; with ``local_weight`` the writer earns the share of the facts that its notes hold, of those that are needed
    or of all, and the retriever the share of those needed that it picks, as in CoMAM.
    """

    stream: ClassVar[str] = "Memory"
    carries_words: ClassVar[bool] = True
    says_whose_turn: ClassVar[bool] = True
    path: Annotated[str, AfterValidator(_file)] = ""  # conversations of a file, in place of invented ones
    layout: Layout = "locomo"  # of the file: "locomo" (locomo10.json) or "longmemeval"
    style: Style = "full"  # of invented ones: "plain" says facts in few words, for tiny models
    people: Annotated[int, Field(ge=2, le=len(PEOPLE))] = 4  # in an invented conversation
    days: Annotated[int, Field(ge=1, le=1000)] = 8  # of one; each is read in one step
    facts: Annotated[int, Field(ge=1, le=100)] = 3  # of a day
    talk: Annotated[int, Field(ge=0, le=1000)] = 6  # lines of a day that say nothing
    questions: Annotated[int, Field(ge=1, le=100)] = 5  # after the conversation
    kinds: Names = KINDS  # of questions: "single", "multi" (two facts), "temporal", "update", "abstention"
    lines: Few = 20  # of a file's session that are read in one step, at most
    # a memory system in place of the notes, with its keys: it is written line by line, and read with each question
    store: MaybeMemoryPlugin = None
    budget: Count = 800  # characters of the notes; what exceeds it is cut. With a store, tokens that a question reads
    picks: Annotated[int, Field(ge=1, le=100)] = 3  # notes that are picked for a question, at most
    # text: the retriever reads the notes and says numbers; choices: it chooses from sets of them; words: it reads the
    # question alone, and says words that the notes have to hold
    retrieval: Retrieval = "text"
    grading: Grading = "exact"  # of answers: "exact", "contains", "f1"
    threshold: Fraction = 1.0  # an answer that is worth so much counts as right
    local_weight: Fraction = 0.0  # what coverage and retrieval earn those who see to it; CoMAM's is 1
    # what the writer's notes are to hold: "asked": what the questions take, which it does not know; "said": all facts
    coverage: Coverage = "asked"
    writer: str = "writer"  # role that keeps notes; "", with a store: what is said goes there as it is
    # role that picks; "": the answerer reads all notes. With a store, it says what to ask that; "": the question
    retriever: str = "retriever"
    answerer: Filled = "answerer"  # role that answers

    @model_validator(mode="after")
    def _check(self) -> Memory:
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
        if self.store is not None and self.coverage == "said":
            raise PydanticCustomError("coverage", "coverage: with a store, what is read counts; leave it at 'asked'")
        if self.path and self.coverage == "said":
            raise PydanticCustomError("coverage", "coverage: facts of a file are not known, but for what is asked")
        room, most = self.days * self.facts, self.people * MOST_FACTS
        if not self.path and not 2 * self.questions <= room <= most:
            raise PydanticCustomError(
                "facts",
                "days × facts is {room}: it must be at least {least}, two facts a question, and at most {most}, "
                "{each} a person",
                {"room": room, "least": 2 * self.questions, "most": most, "each": MOST_FACTS},
            )
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Roles that the team lacks."""
        for key in ("writer", "retriever", "answerer"):
            role = getattr(self, key)
            if role and role not in roles:
                yield f"environment.{key}: no agent is called {role!r}{did_you_mean(role, roles)}"

    @cached_property
    def _recorded(self) -> dict[str, Recorded]:
        return {one.name: one for one in read_conversations(self.path, self.layout, self.lines)}

    @cached_property
    def _recorded_tasks(self) -> dict[Split, list[Task]]:
        found = tasks_by_split(
            list(self._recorded.values()), self.questions, self.kinds,
            retrieved=self.retriever != "", written=self.writer != "", path=self.path,
        )  # fmt: skip
        most = {"train": self.train_tasks, "validation": self.held_out_tasks, "test": self.held_out_tasks}
        return {split: tasks[: most[split]] for split, tasks in found.items()}

    def tasks(self, split: Split) -> Sequence[Task]:
        """Tasks of a split. Those of a file share no conversation.

        Raises:
            ValueError: the file cannot be read, or has too few conversations.
        """
        return self._recorded_tasks[split] if self.path else super().tasks(split)

    def demonstrations(self) -> Iterator[Task]:
        """Invented conversations that are in no split; none of a file."""
        return iter(()) if self.path else super().demonstrations()

    def draw(self, random: Random) -> Drawing:
        """Draw an invented conversation. Its text and its questions are its content."""
        shape = Shape(
            style=self.style, people=self.people, days=self.days, facts=self.facts, talk=self.talk,
            questions=self.questions, kinds=tuple(kind for kind in KINDS if kind in self.kinds),
        )  # fmt: skip
        chunks, questions, said = draw(shape, random)
        content = json.dumps([sorted(fact.note for fact in said), sorted(question.text for question in questions)])
        data = {
            "chunks": [chunk.data() for chunk in chunks], "questions": [question.data() for question in questions],
            "fewest_steps": (len(chunks) if self.writer else 0) + len(questions) * (2 if self.retriever else 1),
        }  # fmt: skip
        if self.coverage == "said":
            data["said"] = [list(fact.words) for fact in said]
        pieces = [*(chunk.text for chunk in chunks), "\n".join(question.text for question in questions)]
        return Drawing(content, "\n\n".join(pieces), data)

    def start(self, task: Task, seed: int) -> MemorySession | StoredSession:  # noqa: ARG002  nothing here is random
        rules = Rules(
            writer=self.writer, retriever=self.retriever, answerer=self.answerer, budget=self.budget, picks=self.picks,
            retrieval=self.retrieval, grading=self.grading, local_weight=self.local_weight, threshold=self.threshold,
        )  # fmt: skip
        named = task.data.get("conversation")
        chunks = self._recorded[named].chunks if named else tuple(map(Chunk.of, task.data["chunks"]))
        questions = tuple(map(Question.of, task.data["questions"]))
        if self.store is not None:
            return StoredSession(chunks, questions, rules, open_store(self.store), self.store.edits)
        said = [tuple(words) for words in task.data["said"]] if self.coverage == "said" else None
        return MemorySession(chunks, questions, rules, said)

    def script(self, skill: float = 1.0) -> Script:
        """Plays the roles of invented conversations; ``solver`` writes and answers."""
        return Rememberer(skill, self.style)
