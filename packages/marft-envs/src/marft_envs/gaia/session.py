"""Session for one question: lookup tools, and grading of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from marft.agents.answers import graded_text
from marft.agents.environment import tool
from marft.common.texts import single_line, truncate
from marft.common.types import JointAction, Observation, Step
from marft_envs.gaia.library import Attachments, PageLibrary, text_part
from marft_envs.gaia.scoring import answers_match, extract_answer
from marft_envs.tool_use.arithmetic import evaluate

MAX_PREVIOUS = 500  # characters of the previous text that are shown again
MAX_SNIPPET = 60  # characters of a page in search results
MAX_UNSOLVED = 0.9  # maximum progress without a correct answer, after reading all sources


class GaiaTask(NamedTuple):
    """A question with its grading data and limits.

    Args:
        question: text of the question.
        expected: correct answer.
        sources: titles and files needed for the answer; () if unknown.
        steps: maximum turns of the team.
        strict: True if an answer counts only after FINAL ANSWER:.
        results: maximum pages in a search result.
        snippets: True if search results show the beginning of each page.
    """

    question: str
    expected: str
    sources: tuple[str, ...]
    steps: int
    strict: bool
    results: int
    snippets: bool


class GaiaSession:
    """Session for one question: the team looks facts up and answers.

    The first stated answer or the last step ends the episode.
    """

    def __init__(self, gaia_task: GaiaTask, library: PageLibrary, attachments: Attachments) -> None:
        self.gaia_task, self.library, self.attachments = gaia_task, library, attachments
        self.step_number, self.call_count = 0, 0
        self.sources_read: set[str] = set()

    @tool
    def search(self, query: str) -> str:
        """Find pages by words."""
        self.call_count += 1
        results = self.library.search(query, self.gaia_task.results)
        lines = [f"[{number}] {page.title}{self._snippet(page.text)}" for number, page in results]
        return "\n".join(lines) or "no page has these words"

    @tool
    def open_page(self, page: int, part: int = 1) -> str:
        """Read a page by its number."""
        self.call_count += 1
        opened_page = self.library.get_page(page)
        self.sources_read.add(opened_page.title)
        return f"{opened_page.title}\n{text_part(opened_page.text, part)}"

    @tool
    def read_file(self, name: str, part: int = 1) -> str:
        """Read a file that came with the question."""
        self.call_count += 1
        text = text_part(self.attachments.read_text(name), part)
        self.sources_read.add(name)
        return f"{name}\n{text}"

    @tool
    def calculate(self, expression: str) -> str:
        """Work out numbers with + - * / and brackets."""
        self.call_count += 1
        return f"{expression} = {evaluate(expression, digits=10).removesuffix('.0')}"

    async def reset(self) -> Observation:
        """Return the question."""
        return self._build_observation("")

    async def step(self, actions: JointAction) -> Step:
        """Grade the team's answer; without one, show the team's last text again in the next observation."""
        text = graded_text(actions.answer)
        answer = extract_answer(text)
        self.step_number += 1
        over = answer is not None or self.step_number >= self.gaia_task.steps
        if answer is None and over and not self.gaia_task.strict:
            answer = text.strip()
        solved = answer is not None and answers_match(answer, self.gaia_task.expected)
        metrics = {"tool_calls": float(self.call_count), "stated": float(extract_answer(text) is not None)}
        return Step(
            Observation("") if over else self._build_observation(text),
            float(solved),
            terminated=over,
            success=solved if over else None,
            info={"progress": self._progress(solved), "measures": metrics},
        )

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _progress(self, solved: bool) -> float:
        sources: Sequence[str] = self.gaia_task.sources
        if solved or not sources:
            return float(solved)
        return MAX_UNSOLVED * sum(source in self.sources_read for source in sources) / len(sources)

    def _snippet(self, text: str) -> str:
        return f": {truncate(single_line(text), MAX_SNIPPET)}" if self.gaia_task.snippets else ""

    def _build_observation(self, previous_text: str) -> Observation:
        lines = [self.gaia_task.question, *(f"File: {name}" for name in self.attachments.files)]
        if self.step_number:
            lines += [f"So far: {truncate(single_line(previous_text), MAX_PREVIOUS) or '(nothing)'}"]
            lines += [f"Step {self.step_number + 1} of {self.gaia_task.steps}."]
        return Observation("\n".join(lines))
