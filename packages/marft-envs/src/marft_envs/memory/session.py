"""Sessions for a conversation: read it in chunks, take notes, then answer questions from the notes.

With a memory system, a session writes to it, and answers questions from the texts that it returns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Literal

from marft.agents.answers import find_integers, graded_text
from marft.agents.memories.notes import NoteList, parse_notes
from marft.agents.memories.store import MemoryStore
from marft.common.types import JointAction, Observation, Step
from marft.config.interfaces.memory import Entry
from marft_envs.memory.conversations import Chunk, Question, contains_fact, grade_answer

if TYPE_CHECKING:
    from marft_envs.memory.environment import Memory

Retrieval = Literal["text", "choices", "words"]
Coverage = Literal["asked", "all"]
NOTHING_TEXT = "(nothing)"
QUESTION_PREFIX = "Question: "  # prefix of the last line for retriever and answerer
MAX_OPTIONS = 100  # maximum options of a retriever


class ConversationSession:
    """Base class for attempts at a conversation: read it in chunks, then answer questions from the texts kept.

    Args:
        chunks: chunks of the conversation.
        questions: questions after the conversation.
        settings: the environment.
    """

    def __init__(self, chunks: Sequence[Chunk], questions: Sequence[Question], settings: Memory) -> None:
        self.chunks, self.questions, self.settings = chunks, questions, settings
        self.chunks_read = self.questions_asked = self.right_answers = 0
        self.found_texts: tuple[str, ...] | None = None  # texts found for the question; None before the search
        self.recall_values: list[float] = []

    async def close(self) -> None:
        """No-op: no resources are held."""

    @property
    def question(self) -> Question:
        """Current question."""
        return self.questions[self.questions_asked]

    @property
    def question_line(self) -> str:
        """Line of the question. It comes after the notes, so that prompts for all questions share a prefix."""
        return f"{QUESTION_PREFIX}{self.question.text}"

    def chunk_observation(self, problem: str, budget: str, notes: str) -> Observation:
        """Return the next chunk with the notes, visible only to the writer."""
        parts = (problem, self.chunks[self.chunks_read].text, f"Notes ({budget}):\n{notes or NOTHING_TEXT}")
        writer = self.settings.writer
        return Observation("", views={writer: "\n\n".join(part for part in parts if part)}, turn=(writer,))

    def answer_observation(self, texts: Sequence[str]) -> Observation:
        """Return the question below texts, visible only to the answerer."""
        answerer = self.settings.answerer
        view = "\n".join((*(texts or (NOTHING_TEXT,)), "", self.question_line))
        return Observation("", views={answerer: view}, turn=(answerer,))

    def grade(self, text: str) -> tuple[float, bool]:
        """Grade an answer and go to the next question; return the score, and True after the last question."""
        score = grade_answer(self.question, text, self.settings.grading)
        self.right_answers += score >= self.settings.threshold
        self.questions_asked, self.found_texts = self.questions_asked + 1, None
        return score, self.questions_asked == len(self.questions)

    def step_info(self, metrics: dict[str, float]) -> dict[str, object]:
        """Return a step's info with progress and metrics."""
        if self.recall_values:
            metrics["retrieval_recall"] = sum(self.recall_values) / len(self.recall_values)
        return {"progress": self.right_answers / len(self.questions), "measures": metrics}


class MemorySession(ConversationSession):
    """Single attempt at a conversation, with notes.

    Args:
        chunks: chunks of the conversation.
        questions: questions after the conversation.
        settings: the environment.
        facts: facts that count for coverage, each by its words; None for the facts that the questions need.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        questions: Sequence[Question],
        settings: Memory,
        facts: Sequence[tuple[str, ...]] | None = None,
    ) -> None:
        super().__init__(chunks, questions, settings)
        self.target_facts = [words for question in questions for words in question.needs] if facts is None else facts
        self.notebook = NoteList(settings.budget)
        self.read_characters = 0  # characters read for questions
        self.coverage = 0.0

    async def reset(self) -> Observation:
        """Return the first chunk."""
        return self._next_chunk("")

    async def step(self, actions: JointAction) -> Step:
        """Take notes on a chunk, picked notes for a question, or an answer."""
        if self.chunks_read < len(self.chunks):
            return self._take_notes(role_text(actions, self.settings.writer))
        if self.found_texts is None and self.settings.retriever:
            return self._apply_picks(role_text(actions, self.settings.retriever))
        return self._grade_answer(role_text(actions, self.settings.answerer))

    def _take_notes(self, text: str) -> Step:
        problem = self.notebook.write(text)
        self.chunks_read += 1
        if self.chunks_read < len(self.chunks):
            return Step(self._next_chunk(problem), 0.0, info=self._step_info())
        self.coverage, weight = fact_coverage(self.target_facts, self.notebook.notes), self.settings.local_weight
        agent_rewards = {self.settings.writer: weight * self.coverage} if weight else {}
        return Step(self._question_observation(), 0.0, agent_rewards=agent_rewards, info=self._step_info())

    def _apply_picks(self, text: str) -> Step:
        if self.settings.retrieval == "words":
            picked = tuple(select_by_words(text, self.notebook.notes))[-self.settings.top_k :]
        else:
            picked = tuple(select_by_number(text, self.notebook.notes))[: self.settings.top_k]
            self.read_characters += self.notebook.num_characters
        self.found_texts, needs, weight = picked, self.question.needs, self.settings.local_weight
        recall = fact_coverage(needs, picked) if needs else float(not picked)
        if needs:
            self.recall_values.append(recall)
        agent_rewards = {self.settings.retriever: weight * recall / len(self.questions)} if weight else {}
        return Step(self.answer_observation(picked), 0.0, agent_rewards=agent_rewards, info=self._step_info())

    def _grade_answer(self, text: str) -> Step:
        notes_read = self.notebook.notes if self.found_texts is None else self.found_texts
        self.read_characters += len("\n".join(notes_read))
        score, over = self.grade(text)
        return Step(
            Observation("") if over else self._question_observation(),
            score / len(self.questions),
            terminated=over,
            success=self.right_answers == len(self.questions),
            info=self._step_info(),
        )

    def _next_chunk(self, problem: str) -> Observation:
        budget = f"{self.notebook.num_characters} of {self.settings.budget}"
        return self.chunk_observation(problem, budget, self.notebook.format_numbered())

    def _question_observation(self) -> Observation:
        """Return the next question.

        The retriever sees it, below the numbered notes if it picks by number. Without a retriever, the answerer sees it
        below all notes.
        """
        retriever = self.settings.retriever
        if not retriever:
            return self.answer_observation(tuple(self.notebook.notes))
        if self.settings.retrieval == "words":
            return Observation("", views={retriever: self.question_line}, turn=(retriever,))
        view = f"{self.notebook.format_numbered() or NOTHING_TEXT}\n\n{self.question_line}"
        options = {retriever: self._note_options()} if self.settings.retrieval == "choices" else {}
        return Observation("", views={retriever: view}, turn=(retriever,), options=options)

    def _note_options(self) -> tuple[str, ...]:
        """Return sets of note numbers as options, small sets first, up to the maximum."""
        numbers = range(1, len(self.notebook.notes) + 1)
        options = ["none"]
        for size in range(1, self.settings.top_k + 1):
            options += [" ".join(map(str, numbers_chosen)) for numbers_chosen in combinations(numbers, size)]
            if len(options) >= MAX_OPTIONS:
                break
        return tuple(options[: max(MAX_OPTIONS, len(numbers) + 1)])

    def _step_info(self) -> dict[str, object]:
        metrics = {
            "write_characters": float(self.notebook.written_characters),
            "memory_characters": float(self.notebook.num_characters),
            "read_characters": float(self.read_characters),
            "coverage": self.coverage,
        }
        return self.step_info(metrics)


class StoreSession(ConversationSession):
    """Single attempt at a conversation, with a memory system that is written to and searched.

    Args:
        chunks: chunks of the conversation.
        questions: questions after the conversation.
        settings: the environment.
        store: memory system.
        edits: True to store the writer's text as a whole, False to store it line by line.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        questions: Sequence[Question],
        settings: Memory,
        store: MemoryStore,
        edits: bool,
    ) -> None:
        super().__init__(chunks, questions, settings)
        self.store, self.edits = store, edits

    async def reset(self) -> Observation:
        """Return the first chunk; without a writer, store everything and return the first question."""
        if self.settings.writer:
            return await self._next_chunk("")
        for chunk in self.chunks:
            await self.store.write([Entry(f"{chunk.date}: {line}", kind="experiential") for line in chunk.lines])
        self.chunks_read = len(self.chunks)
        return await self._question_observation()

    async def step(self, actions: JointAction) -> Step:
        """Take notes on a chunk, a query to the memory system, or an answer."""
        if self.chunks_read < len(self.chunks):
            return await self._write_notes(role_text(actions, self.settings.writer))
        if self.found_texts is not None:
            return await self._grade_answer(role_text(actions, self.settings.answerer))
        texts = await self._read_store(role_text(actions, self.settings.retriever))
        agent_rewards = {self.settings.retriever: self._local_reward()} if self.settings.local_weight else {}
        return Step(self.answer_observation(texts), 0.0, agent_rewards=agent_rewards, info=self._step_info())

    async def _write_notes(self, text: str) -> Step:
        lines = [text] if self.edits else parse_notes(text)
        write_result = await self.store.write([Entry(line) for line in lines])
        self.chunks_read += 1
        more = self.chunks_read < len(self.chunks)
        observation = await (self._next_chunk(write_result.message) if more else self._question_observation())
        return Step(observation, 0.0, info=self._step_info())

    async def _next_chunk(self, problem: str) -> Observation:
        notes = (await self.store.read("", self.settings.budget)).text
        return self.chunk_observation(problem, str(self.settings.budget), notes)

    async def _question_observation(self) -> Observation:
        """Return the next question, for the retriever's query or for the answerer."""
        retriever = self.settings.retriever
        if retriever:
            return Observation("", views={retriever: self.question_line}, turn=(retriever,))
        return self.answer_observation(await self._read_store(self.question.text))

    async def _read_store(self, words: str) -> tuple[str, ...]:
        self.found_texts = (await self.store.read(words, self.settings.budget)).texts
        if self.question.needs:
            self.recall_values.append(fact_coverage(self.question.needs, self.found_texts))
        return self.found_texts

    async def _grade_answer(self, text: str) -> Step:
        has_local_reward = self.settings.local_weight > 0 and self.settings.writer
        agent_rewards = {self.settings.writer: self._local_reward()} if has_local_reward else {}
        score, over = self.grade(text)
        return Step(
            Observation("") if over else await self._question_observation(),
            score / len(self.questions),
            terminated=over,
            success=self.right_answers == len(self.questions),
            agent_rewards=agent_rewards,
            info=self._step_info(),
        )

    def _local_reward(self) -> float:
        """Return an agent's reward for the fraction of needed facts read; 0 if the question needs none."""
        needs = self.question.needs
        coverage = fact_coverage(needs, self.found_texts or ()) if needs else 0.0
        return self.settings.local_weight * coverage / len(self.questions)

    def _step_info(self) -> dict[str, object]:
        costs = self.store.costs
        metrics = {
            "write_tokens": float(costs.write.tokens),
            "read_tokens": float(costs.read.tokens),
            "memory_bytes": float(self.store.size_bytes),
        }
        return self.step_info(metrics)


def select_by_number(text: str, notes: Sequence[str]) -> list[str]:
    """Return the notes selected by number in a text, in its order.

    >>> select_by_number("2, then 1, and 7", ["Ann likes rice.", "Bea likes soup."])
    ['Bea likes soup.', 'Ann likes rice.']
    """
    numbers = dict.fromkeys(find_integers(text))
    return [notes[place - 1] for place in numbers if 1 <= place <= len(notes)]


def select_by_words(text: str, notes: Sequence[str]) -> list[str]:
    """Return the notes that contain every word in a text; case and order are ignored.

    A text without words selects no notes.

    >>> select_by_words("likes Ann", ["Ann likes rice.", "Bea likes soup."]), select_by_words("?", ["Ann likes rice."])
    (['Ann likes rice.'], [])
    """
    words = _word_set(text)
    return [note for note in notes if words <= _word_set(note)] if words else []


def _word_set(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def role_text(actions: JointAction, role: str) -> str:
    """Return the text from a role's action."""
    return graded_text(actions.for_role(role))


def fact_coverage(needs: Sequence[tuple[str, ...]], notes: Sequence[str]) -> float:
    """Return the fraction of facts contained in a note; 1 without facts."""
    return sum(any(contains_fact(note, words) for note in notes) for words in needs) / len(needs) if needs else 1.0
