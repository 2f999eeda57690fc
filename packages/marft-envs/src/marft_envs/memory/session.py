"""One conversation: it is read piece by piece and noted down; then questions are answered from the notes."""

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
QUESTION = "Question: "  # what the last line of who retrieves or answers begins with
MOST_OPTIONS = 100  # that a retriever chooses from


@dataclass(frozen=True)
class Rules:
    """What holds for every conversation.

    Args:
        retriever: "" where the answerer reads all notes.
        budget: characters of the notes.
        picks: notes that are picked for a question, at most.
        local_weight: what the writer earns for all that is needed being noted, and the retriever for picking it.
        threshold: what an answer is worth at least that counts as right.
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
    """One attempt at remembering a conversation.

    Args:
        said: facts that notes are to hold, each by its words; None: those that the questions take.
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
        self.read = self.asked = 0  # pieces, questions
        self.picked: tuple[str, ...] | None = None  # for the question; None: nobody has picked yet
        self.right = self.characters = 0  # answers; that were read for questions
        self.recalls: list[float] = []
        self.coverage = 0.0

    async def reset(self) -> Observation:
        return self._piece("")

    async def step(self, actions: JointAction) -> Step:
        """Take the notes on a piece, what is picked for a question, or its answer."""
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
        """The next piece, to the writer alone."""
        held = f"Notes ({self.notebook.size} of {self.rules.budget}):"
        parts = (problem, self.chunks[self.read].text, f"{held}\n{self.notebook.shown() or NOTHING}")
        writer = self.rules.writer
        return Observation("", views={writer: "\n\n".join(part for part in parts if part)}, turn=(writer,))

    def _question(self) -> Observation:
        """The next question: to the retriever, below the notes by number where it picks by those; or to the answerer,
        below all of them."""
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
        """What is asked, below the notes: prompts of all questions begin alike."""
        return f"{QUESTION}{self.questions[self.asked].text}"

    def _options(self) -> tuple[str, ...]:
        """Numbers of notes that may be picked together, as many sets as there are at most."""
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
    """The notes whose numbers a text says, in its order.

    >>> numbered("2, then 1, and 7", ["Ann likes rice.", "Bea likes soup."])
    ['Bea likes soup.', 'Ann likes rice.']
    """
    places = dict.fromkeys(whole_numbers(text))
    return [notes[place - 1] for place in places if 1 <= place <= len(notes)]


def found(text: str, notes: Sequence[str]) -> list[str]:
    """The notes in which all words of a text stand, whatever their case and order; none for a text without words.

    >>> found("likes Ann", ["Ann likes rice.", "Bea likes soup."]), found("?", ["Ann likes rice."])
    (['Ann likes rice.'], [])
    """
    words = _words(text)
    return [note for note in notes if words <= _words(note)] if words else []


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.casefold()))


def said(actions: JointAction, role: str) -> str:
    return text_said(actions.of(role))


def share_held(needs: Sequence[tuple[str, ...]], notes: Sequence[str]) -> float:
    """The share of facts that some note says; 1 where there are none."""
    return sum(any(holds(note, words) for note in notes) for words in needs) / len(needs) if needs else 1.0
