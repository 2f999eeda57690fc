"""Session with a memory system: write to it, then answer questions from the texts that it returns."""

from __future__ import annotations

from collections.abc import Sequence

from marft.agents.memories.interface import Entry
from marft.agents.memories.note_list import parse_notes
from marft.agents.memories.store import MemoryStore
from marft.common.types import JointAction, Observation, Step
from marft_envs.memory.conversations import Chunk, Question
from marft_envs.memory.grading import grade_answer
from marft_envs.memory.session import NOTHING_TEXT, QUESTION_PREFIX, MemoryRules, fact_coverage, role_text


class StoreSession:
    """Single attempt at a conversation with a memory system.

    Args:
        chunks: chunks of the conversation.
        questions: questions after the conversation.
        rules: rules of the session.
        store: memory system.
        edits: True to store the writer's text as a whole, False to store it line by line.
    """

    def __init__(
        self,
        chunks: Sequence[Chunk],
        questions: Sequence[Question],
        rules: MemoryRules,
        store: MemoryStore,
        edits: bool,
    ) -> None:
        self.chunks, self.questions, self.rules, self.store, self.edits = chunks, questions, rules, store, edits
        # chunks written, questions asked, right answers
        self.chunks_written = self.questions_asked = self.right_answers = 0
        self.texts_read: tuple[str, ...] | None = None  # texts read for the question; None before the query
        self.recall_values: list[float] = []

    async def reset(self) -> Observation:
        """Return the first chunk; without a writer, store everything and return the first question."""
        if self.rules.writer:
            return await self._chunk_observation("")
        for chunk in self.chunks:
            await self.store.write([Entry(f"{chunk.date}: {line}", kind="experiential") for line in chunk.lines])
        self.chunks_written = len(self.chunks)
        return await self._question_observation()

    async def step(self, actions: JointAction) -> Step:
        """Take notes on a chunk, a query to the memory system, or an answer."""
        if self.chunks_written < len(self.chunks):
            return await self._write_notes(role_text(actions, self.rules.writer))
        if self.texts_read is None:
            await self._read_store(role_text(actions, self.rules.retriever))
            agent_rewards = {self.rules.retriever: self._local_reward()} if self.rules.local_weight else {}
            return Step(self._answer_observation(), 0.0, agent_rewards=agent_rewards, info=self._step_info())
        return await self._grade_answer(role_text(actions, self.rules.answerer))

    async def close(self) -> None: ...

    async def _write_notes(self, text: str) -> Step:
        lines = [text] if self.edits else parse_notes(text)
        write_result = await self.store.write([Entry(line) for line in lines])
        self.chunks_written += 1
        observation = (
            await self._chunk_observation(write_result.message)
            if self.chunks_written < len(self.chunks)
            else await self._question_observation()
        )
        return Step(observation, 0.0, info=self._step_info())

    async def _chunk_observation(self, problem: str) -> Observation:
        """Return the next chunk with the latest notes, visible only to the writer."""
        notes_text = (await self.store.read("", self.rules.budget)).text
        parts = (
            problem,
            self.chunks[self.chunks_written].text,
            f"Notes ({self.rules.budget}):\n{notes_text or NOTHING_TEXT}",
        )
        writer = self.rules.writer
        return Observation("", views={writer: "\n\n".join(part for part in parts if part)}, turn=(writer,))

    async def _question_observation(self) -> Observation:
        """Return the next question, for the retriever's query or for the answerer."""
        retriever = self.rules.retriever
        if retriever:
            return Observation("", views={retriever: self._question_line()}, turn=(retriever,))
        await self._read_store(self.questions[self.questions_asked].text)
        return self._answer_observation()

    async def _read_store(self, words: str) -> None:
        self.texts_read = (await self.store.read(words, self.rules.budget)).texts
        needs = self.questions[self.questions_asked].needs
        if needs:
            self.recall_values.append(fact_coverage(needs, self.texts_read))

    def _answer_observation(self) -> Observation:
        answerer = self.rules.answerer
        view = "\n".join((*(self.texts_read or (NOTHING_TEXT,)), "", self._question_line()))
        return Observation("", views={answerer: view}, turn=(answerer,))

    async def _grade_answer(self, text: str) -> Step:
        score = grade_answer(self.questions[self.questions_asked], text, self.rules.grading)
        self.right_answers += score >= self.rules.threshold
        has_local_reward = self.rules.local_weight > 0 and self.rules.writer
        agent_rewards = {self.rules.writer: self._local_reward()} if has_local_reward else {}
        self.questions_asked, self.texts_read = self.questions_asked + 1, None
        over = self.questions_asked == len(self.questions)
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
        needs = self.questions[self.questions_asked].needs
        coverage = fact_coverage(needs, self.texts_read or ()) if needs else 0.0
        return self.rules.local_weight * coverage / len(self.questions)

    def _question_line(self) -> str:
        return f"{QUESTION_PREFIX}{self.questions[self.questions_asked].text}"

    def _step_info(self) -> dict[str, object]:
        costs = self.store.costs
        metrics = {
            "write_tokens": float(costs.write.tokens),
            "read_tokens": float(costs.read.tokens),
            "memory_bytes": float(self.store.size),
        }
        if self.recall_values:
            metrics["retrieval_recall"] = sum(self.recall_values) / len(self.recall_values)
        return {"progress": self.right_answers / len(self.questions), "measures": metrics}
