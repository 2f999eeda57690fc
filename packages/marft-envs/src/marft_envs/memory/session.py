"""Session for a conversation: read it in chunks, take notes, then answer questions from the notes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from marft.agents.answers import find_integers, graded_text
from marft.agents.memories.note_list import NoteList
from marft.common.types import JointAction, Observation, Step
from marft_envs.memory.conversations import Chunk, Question
from marft_envs.memory.grading import Grading, contains_fact, grade_answer

Retrieval = Literal["text", "choices", "words"]
Coverage = Literal["asked", "all"]
NOTHING_TEXT = "(nothing)"
QUESTION_PREFIX = "Question: "  # prefix of the last line for retriever and answerer
MAX_OPTIONS = 100  # maximum options of a retriever


@dataclass(frozen=True)
class MemoryRules:
    """Rules for every conversation.

    Args:
        writer: role that takes notes.
        retriever: role that picks notes; "" if the answerer sees all notes.
        answerer: role that answers.
        budget: maximum characters of the notes.
        top_k: maximum notes picked per question.
        retrieval: way of picking notes.
        grading: grading of answers.
        local_weight: weight of the writer's reward for coverage and of the retriever's reward for recall.
        threshold: minimum score of a right answer.
    """

    writer: str
    retriever: str
    answerer: str
    budget: int
    top_k: int
    retrieval: Retrieval
    grading: Grading
    local_weight: float
    threshold: float


class MemorySession:
    """Single attempt at a conversation.

    Args:
        chunks: chunks of the conversation.
        questions: questions after the conversation.
        rules: rules of the session.
        facts: facts that count for coverage, each by its words; None for the facts that the questions need.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        questions: Sequence[Question],
        rules: MemoryRules,
        facts: Sequence[tuple[str, ...]] | None = None,
    ) -> None:
        self.chunks, self.questions, self.rules = chunks, questions, rules
        self.target_facts = [words for question in questions for words in question.needs] if facts is None else facts
        self.notebook = NoteList(rules.budget)
        self.chunks_read = self.questions_asked = 0  # chunks read, questions asked
        self.picked_notes: tuple[str, ...] | None = None  # picked notes; None before the retriever's turn
        self.right_answers = self.read_characters = 0  # right answers; characters read for questions
        self.recall_values: list[float] = []
        self.coverage = 0.0

    async def reset(self) -> Observation:
        """Return the first chunk."""
        return self._chunk_observation("")

    async def step(self, actions: JointAction) -> Step:
        """Take notes on a chunk, picked notes for a question, or an answer."""
        if self.chunks_read < len(self.chunks):
            return self._take_notes(role_text(actions, self.rules.writer))
        if self.picked_notes is None and self.rules.retriever:
            return self._apply_picks(role_text(actions, self.rules.retriever))
        return self._grade_answer(role_text(actions, self.rules.answerer))

    async def close(self) -> None: ...

    def _take_notes(self, text: str) -> Step:
        problem = self.notebook.write(text)
        self.chunks_read += 1
        if self.chunks_read < len(self.chunks):
            return Step(self._chunk_observation(problem), 0.0, info=self._step_info())
        self.coverage = fact_coverage(self.target_facts, self.notebook.notes)
        agent_rewards = {self.rules.writer: self.rules.local_weight * self.coverage} if self.rules.local_weight else {}
        return Step(self._question_observation(), 0.0, agent_rewards=agent_rewards, info=self._step_info())

    def _apply_picks(self, text: str) -> Step:
        if self.rules.retrieval == "words":
            self.picked_notes = tuple(select_by_words(text, self.notebook.notes))[-self.rules.top_k :]
        else:
            self.picked_notes = tuple(select_by_number(text, self.notebook.notes))[: self.rules.top_k]
            self.read_characters += self.notebook.size
        needs = self.questions[self.questions_asked].needs
        recall = fact_coverage(needs, self.picked_notes) if needs else float(not self.picked_notes)
        if needs:
            self.recall_values.append(recall)
        reward = self.rules.local_weight * recall / len(self.questions)
        agent_rewards = {self.rules.retriever: reward} if self.rules.local_weight else {}
        return Step(
            self._answer_observation(self.picked_notes), 0.0, agent_rewards=agent_rewards, info=self._step_info()
        )

    def _grade_answer(self, text: str) -> Step:
        question = self.questions[self.questions_asked]
        notes_read = self.notebook.notes if self.picked_notes is None else self.picked_notes
        self.read_characters += len("\n".join(notes_read))
        score = grade_answer(question, text, self.rules.grading)
        self.right_answers += score >= self.rules.threshold
        self.questions_asked, self.picked_notes = self.questions_asked + 1, None
        over = self.questions_asked == len(self.questions)
        return Step(
            Observation("") if over else self._question_observation(),
            score / len(self.questions),
            terminated=over,
            success=self.right_answers == len(self.questions),
            info=self._step_info(),
        )

    def _chunk_observation(self, problem: str) -> Observation:
        """Return the next chunk, visible only to the writer."""
        notes_header = f"Notes ({self.notebook.size} of {self.rules.budget}):"
        parts = (
            problem,
            self.chunks[self.chunks_read].text,
            f"{notes_header}\n{self.notebook.format_numbered() or NOTHING_TEXT}",
        )
        writer = self.rules.writer
        return Observation("", views={writer: "\n\n".join(part for part in parts if part)}, turn=(writer,))

    def _question_observation(self) -> Observation:
        """Return the next question.

        The retriever sees it, below the numbered notes if it picks by number. Without a retriever, the answerer sees it
        below all notes.
        """
        retriever = self.rules.retriever
        if not retriever:
            return self._answer_observation(tuple(self.notebook.notes))
        if self.rules.retrieval == "words":
            return Observation("", views={retriever: self._question_line()}, turn=(retriever,))
        view = f"{self.notebook.format_numbered() or NOTHING_TEXT}\n\n{self._question_line()}"
        options = {retriever: self._note_options()} if self.rules.retrieval == "choices" else {}
        return Observation("", views={retriever: view}, turn=(retriever,), options=options)

    def _answer_observation(self, notes: Sequence[str]) -> Observation:
        answerer = self.rules.answerer
        view = "\n".join((*(notes or (NOTHING_TEXT,)), "", self._question_line()))
        return Observation("", views={answerer: view}, turn=(answerer,))

    def _question_line(self) -> str:
        """Return the question's line. It comes after the notes, so that prompts for all questions share a prefix."""
        return f"{QUESTION_PREFIX}{self.questions[self.questions_asked].text}"

    def _note_options(self) -> tuple[str, ...]:
        """Return sets of note numbers as options, small sets first, up to the maximum."""
        numbers = range(1, len(self.notebook.notes) + 1)
        options = ["none"]
        for size in range(1, self.rules.top_k + 1):
            options += [" ".join(map(str, numbers_chosen)) for numbers_chosen in combinations(numbers, size)]
            if len(options) >= MAX_OPTIONS:
                break
        return tuple(options[: max(MAX_OPTIONS, len(numbers) + 1)])

    def _step_info(self) -> dict[str, object]:
        metrics = {
            "write_characters": float(self.notebook.written_characters),
            "memory_characters": float(self.notebook.size),
            "read_characters": float(self.read_characters),
            "coverage": self.coverage,
        }
        if self.recall_values:
            metrics["retrieval_recall"] = sum(self.recall_values) / len(self.recall_values)
        return {"progress": self.right_answers / len(self.questions), "measures": metrics}


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
