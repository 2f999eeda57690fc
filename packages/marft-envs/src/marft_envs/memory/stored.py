"""Session with a memory system: write to it, then answer questions from the texts that it returns."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.memories.interface import Entry
from marft.agents.memories.notebook import notes_in
from marft.agents.memories.store import Store
from marft.common.types import JointAction, Observation, Step
from marft_envs.memory.conversations import Chunk, Question
from marft_envs.memory.grading import graded
from marft_envs.memory.session import NOTHING, QUESTION, Rules, said, share_held


class StoredSession:
    """Single attempt at a conversation with a memory system.

    Args:
        chunks: chunks of the conversation.
        questions: questions after the conversation.
        rules: rules of the session.
        store: memory system.
        edits: True to store the writer's text as a whole, False to store it line by line.
    """

    def __init__(
        self, chunks: Sequence[Chunk], questions: Sequence[Question], rules: Rules, store: Store, edits: bool
    ) -> None:
        self.chunks, self.questions, self.rules, self.store, self.edits = chunks, questions, rules, store, edits
        self.written = self.asked = self.right = 0  # chunks written, questions asked, right answers
        self.texts: tuple[str, ...] | None = None  # texts read for the question; None before the query
        self.recalls: list[float] = []

    async def reset(self) -> Observation:
        """Return the first chunk; without a writer, store everything and return the first question."""
        if self.rules.writer:
            return await self._piece("")
        for chunk in self.chunks:
            await self.store.write([Entry(f"{chunk.date}: {line}", kind="experiential") for line in chunk.lines])
        self.written = len(self.chunks)
        return await self._question()

    async def step(self, actions: JointAction) -> Step:
        """Take notes on a chunk, a query to the memory system, or an answer."""
        if self.written < len(self.chunks):
            return await self._wrote(said(actions, self.rules.writer))
        if self.texts is None:
            await self._read(said(actions, self.rules.retriever))
            own = {self.rules.retriever: self._earned()} if self.rules.local_weight else {}
            return Step(self._to_answer(), 0.0, agent_rewards=own, info=self._told())
        return await self._answered(said(actions, self.rules.answerer))

    async def close(self) -> None: ...

    async def _wrote(self, text: str) -> Step:
        lines = [text] if self.edits else notes_in(text)
        work = await self.store.write([Entry(line) for line in lines])
        self.written += 1
        shown = await self._piece(work.said) if self.written < len(self.chunks) else await self._question()
        return Step(shown, 0.0, info=self._told())

    async def _piece(self, problem: str) -> Observation:
        """Return the next chunk with the latest notes, visible only to the writer."""
        held = (await self.store.read("", self.rules.budget)).text
        parts = (problem, self.chunks[self.written].text, f"Notes ({self.rules.budget}):\n{held or NOTHING}")
        writer = self.rules.writer
        return Observation("", views={writer: "\n\n".join(part for part in parts if part)}, turn=(writer,))

    async def _question(self) -> Observation:
        """Return the next question, for the retriever's query or for the answerer."""
        retriever = self.rules.retriever
        if retriever:
            return Observation("", views={retriever: self._asking()}, turn=(retriever,))
        await self._read(self.questions[self.asked].text)
        return self._to_answer()

    async def _read(self, words: str) -> None:
        self.texts = (await self.store.read(words, self.rules.budget)).texts
        needs = self.questions[self.asked].needs
        if needs:
            self.recalls.append(share_held(needs, self.texts))

    def _to_answer(self) -> Observation:
        answerer = self.rules.answerer
        view = "\n".join((*(self.texts or (NOTHING,)), "", self._asking()))
        return Observation("", views={answerer: view}, turn=(answerer,))

    async def _answered(self, text: str) -> Step:
        worth = graded(self.questions[self.asked], text, self.rules.grading)
        self.right += worth >= self.rules.threshold
        earning = self.rules.local_weight > 0 and self.rules.writer
        own = {self.rules.writer: self._earned()} if earning else {}
        self.asked, self.texts = self.asked + 1, None
        over = self.asked == len(self.questions)
        return Step(
            Observation("") if over else await self._question(), worth / len(self.questions), terminated=over,
            success=self.right == len(self.questions), agent_rewards=own, info=self._told(),
        )  # fmt: skip

    def _earned(self) -> float:
        """Return an agent's reward for the fraction of needed facts read; 0 if the question needs none."""
        needs = self.questions[self.asked].needs
        held = share_held(needs, self.texts or ()) if needs else 0.0
        return self.rules.local_weight * held / len(self.questions)

    def _asking(self) -> str:
        return f"{QUESTION}{self.questions[self.asked].text}"

    def _told(self) -> dict[str, object]:
        costs = self.store.costs
        measures = {
            "write_tokens": float(costs.write.tokens),
            "read_tokens": float(costs.read.tokens),
            "memory_bytes": float(self.store.size),
        }
        if self.recalls:
            measures["retrieval_recall"] = sum(self.recalls) / len(self.recalls)
        return {"progress": self.right / len(self.questions), "measures": measures}
