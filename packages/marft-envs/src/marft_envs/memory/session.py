"""Session for a conversation: read it in chunks, take notes, then answer questions from the notes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal

from marft.agents.answers import text_said, whole_numbers
from marft.agents.memories.notebook import Notebook
from marft.common.types import JointAction, Observation, Step
from marft_envs.memory.conversations import Chunk, Question
from marft_envs.memory.grading import Grading, graded, holds

Retrieval = Literal["text", "choices", "words"]
Coverage = Literal["asked", "said"]
NOTHING = "(nothing)"
QUESTION = "Question: "  # prefix of the last line for retriever and answerer
MOST_OPTIONS = 100  # maximum options of a retriever


@dataclass(frozen=True)
class Rules:
    """Rules for every conversation.

    Args:
        writer: role that takes notes.
        retriever: role that picks notes; "" if the answerer sees all notes.
        answerer: role that answers.
        budget: maximum characters of the notes.
        picks: maximum notes picked per question.
        retrieval: way of picking notes.
        grading: grading of answers.
        local_weight: weight of the writer's reward for coverage and of the retriever's reward for recall.
        threshold: minimum score of a right answer.
    """

    writer: str
    retriever: str
    answerer: str
    budget: int
    picks: int
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
        said: facts that count for coverage, each by its words; None for the facts that the questions need.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        questions: Sequence[Question],
        rules: Rules,
        said: Sequence[tuple[str, ...]] | None = None,
    ) -> None:
        self.chunks, self.questions, self.rules = chunks, questions, rules
        self.wanted = [words for question in questions for words in question.needs] if said is None else said
        self.notebook = Notebook(rules.budget)
        self.read = self.asked = 0  # chunks read, questions asked
        self.picked: tuple[str, ...] | None = None  # picked notes; None before the retriever's turn
        self.right = self.characters = 0  # right answers; characters read for questions
        self.recalls: list[float] = []
        self.coverage = 0.0

    async def reset(self) -> Observation:
        """Return the first chunk."""
        return self._piece("")

    async def step(self, actions: JointAction) -> Step:
        """Take notes on a chunk, picked notes for a question, or an answer."""
        if self.read < len(self.chunks):
            return self._noted(said(actions, self.rules.writer))
        if self.picked is None and self.rules.retriever:
            return self._picked(said(actions, self.rules.retriever))
        return self._answered(said(actions, self.rules.answerer))

    async def close(self) -> None: ...

    def _noted(self, text: str) -> Step:
        problem = self.notebook.write(text)
        self.read += 1
        if self.read < len(self.chunks):
            return Step(self._piece(problem), 0.0, info=self._told())
        self.coverage = share_held(self.wanted, self.notebook.notes)
        own = {self.rules.writer: self.rules.local_weight * self.coverage} if self.rules.local_weight else {}
        return Step(self._question(), 0.0, agent_rewards=own, info=self._told())

    def _picked(self, text: str) -> Step:
        if self.rules.retrieval == "words":
            self.picked = tuple(found(text, self.notebook.notes))[-self.rules.picks :]
        else:
            self.picked = tuple(numbered(text, self.notebook.notes))[: self.rules.picks]
            self.characters += self.notebook.size
        needs = self.questions[self.asked].needs
        recall = share_held(needs, self.picked) if needs else float(not self.picked)
        if needs:
            self.recalls.append(recall)
        earned = self.rules.local_weight * recall / len(self.questions)
        own = {self.rules.retriever: earned} if self.rules.local_weight else {}
        return Step(self._to_answer(self.picked), 0.0, agent_rewards=own, info=self._told())

    def _answered(self, text: str) -> Step:
        question = self.questions[self.asked]
        read = self.notebook.notes if self.picked is None else self.picked
        self.characters += len("\n".join(read))
        worth = graded(question, text, self.rules.grading)
        self.right += worth >= self.rules.threshold
        self.asked, self.picked = self.asked + 1, None
        over = self.asked == len(self.questions)
        return Step(
            Observation("") if over else self._question(), worth / len(self.questions), terminated=over,
            success=self.right == len(self.questions), info=self._told(),
        )  # fmt: skip

    def _piece(self, problem: str) -> Observation:
        """Return the next chunk, visible only to the writer."""
        held = f"Notes ({self.notebook.size} of {self.rules.budget}):"
        parts = (problem, self.chunks[self.read].text, f"{held}\n{self.notebook.shown() or NOTHING}")
        writer = self.rules.writer
        return Observation("", views={writer: "\n\n".join(part for part in parts if part)}, turn=(writer,))

    def _question(self) -> Observation:
        """Return the next question.

        The retriever sees it, below the numbered notes if it picks by number. Without a retriever, the answerer sees it
        below all notes.
        """
        retriever = self.rules.retriever
        if not retriever:
            return self._to_answer(tuple(self.notebook.notes))
        if self.rules.retrieval == "words":
            return Observation("", views={retriever: self._asking()}, turn=(retriever,))
        view = f"{self.notebook.shown() or NOTHING}\n\n{self._asking()}"
        options = {retriever: self._options()} if self.rules.retrieval == "choices" else {}
        return Observation("", views={retriever: view}, turn=(retriever,), options=options)

    def _to_answer(self, notes: Sequence[str]) -> Observation:
        answerer = self.rules.answerer
        view = "\n".join((*(notes or (NOTHING,)), "", self._asking()))
        return Observation("", views={answerer: view}, turn=(answerer,))

    def _asking(self) -> str:
        """Return the question's line. It comes after the notes, so that prompts for all questions share a prefix."""
        return f"{QUESTION}{self.questions[self.asked].text}"

    def _options(self) -> tuple[str, ...]:
        """Return sets of note numbers as options, small sets first, up to the maximum."""
        numbers = range(1, len(self.notebook.notes) + 1)
        options = ["none"]
        for size in range(1, self.rules.picks + 1):
            options += [" ".join(map(str, some)) for some in combinations(numbers, size)]
            if len(options) >= MOST_OPTIONS:
                break
        return tuple(options[: max(MOST_OPTIONS, len(numbers) + 1)])

    def _told(self) -> dict[str, object]:
        measures = {
            "write_characters": float(self.notebook.written),
            "memory_characters": float(self.notebook.size),
            "read_characters": float(self.characters),
            "coverage": self.coverage,
        }
        if self.recalls:
            measures["retrieval_recall"] = sum(self.recalls) / len(self.recalls)
        return {"progress": self.right / len(self.questions), "measures": measures}


def numbered(text: str, notes: Sequence[str]) -> list[str]:
    """Return the notes selected by number in a text, in its order.

    >>> numbered("2, then 1, and 7", ["Ann likes rice.", "Bea likes soup."])
    ['Bea likes soup.', 'Ann likes rice.']
    """
    places = dict.fromkeys(whole_numbers(text))
    return [notes[place - 1] for place in places if 1 <= place <= len(notes)]


def found(text: str, notes: Sequence[str]) -> list[str]:
    """Return the notes that contain every word in a text; case and order are ignored.

    A text without words selects no notes.

    >>> found("likes Ann", ["Ann likes rice.", "Bea likes soup."]), found("?", ["Ann likes rice."])
    (['Ann likes rice.'], [])
    """
    words = _words(text)
    return [note for note in notes if words <= _words(note)] if words else []


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def said(actions: JointAction, role: str) -> str:
    """Return the text from a role's action."""
    return text_said(actions.of(role))


def share_held(needs: Sequence[tuple[str, ...]], notes: Sequence[str]) -> float:
    """Return the fraction of facts contained in a note; 1 without facts."""
    return sum(any(holds(note, words) for note in notes) for words in needs) / len(needs) if needs else 1.0
