"""Session for one question: lookup tools, and grading of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from marft.agents.answers import text_said
from marft.agents.environment import tool
from marft.common.texts import cut, one_line
from marft.common.types import JointAction, Observation, Step
from marft_envs.gaia.library import Attached, Library, part_of_text
from marft_envs.gaia.scoring import matches, stated
from marft_envs.tool_use.arithmetic import value_of

LONGEST = 500  # characters of the previous text that are shown again
SNIPPET = 60  # characters of a page in search results
UNSOLVED = 0.9  # maximum progress without a correct answer, after reading all sources


class Asked(NamedTuple):
    """A question with its grading data and limits.

    Args:
        question: text of the question.
        right: correct answer.
        sources: titles and files needed for the answer; () if unknown.
        steps: maximum turns of the team.
        strict: True if an answer counts only after FINAL ANSWER:.
        results: maximum pages in a search result.
        snippets: True if search results show the beginning of each page.
    """

    question: str
    right: str
    sources: tuple[str, ...]
    steps: int
    strict: bool
    results: int
    snippets: bool


class GaiaSession:
    """Session for one question: the team looks facts up and answers.

    The first stated answer or the last step ends the episode.
    """

    def __init__(self, asked: Asked, library: Library, attached: Attached) -> None:
        self.asked, self.library, self.attached = asked, library, attached
        self.step_number, self.calls = 0, 0
        self.read: set[str] = set()

    @tool
    def search(self, query: str) -> str:
        """Find pages by words."""
        self.calls += 1
        found = self.library.found(query, self.asked.results)
        lines = [f"[{number}] {page.title}{self._beginning(page.text)}" for number, page in found]
        return "\n".join(lines) or "no page has these words"

    @tool
    def open_page(self, page: int, part: int = 1) -> str:
        """Read a page by its number."""
        self.calls += 1
        opened = self.library.page(page)
        self.read.add(opened.title)
        return f"{opened.title}\n{part_of_text(opened.text, part)}"

    @tool
    def read_file(self, name: str, part: int = 1) -> str:
        """Read a file that came with the question."""
        self.calls += 1
        text = part_of_text(self.attached.text(name), part)
        self.read.add(name)
        return f"{name}\n{text}"

    @tool
    def calculate(self, expression: str) -> str:
        """Work out numbers with + - * / and brackets."""
        self.calls += 1
        return f"{expression} = {value_of(expression, digits=10).removesuffix('.0')}"

    async def reset(self) -> Observation:
        """Return the question."""
        return self._shown("")

    async def step(self, actions: JointAction) -> Step:
        """Grade the team's answer; without one, show the team's last text again in the next observation."""
        text = text_said(actions.answer)
        answer = stated(text)
        self.step_number += 1
        over = answer is not None or self.step_number >= self.asked.steps
        if answer is None and over and not self.asked.strict:
            answer = text.strip()
        solved = answer is not None and matches(answer, self.asked.right)
        measures = {"tool_calls": float(self.calls), "stated": float(stated(text) is not None)}
        return Step(
            Observation("") if over else self._shown(text), float(solved), terminated=over,
            success=solved if over else None, info={"progress": self._progress(solved), "measures": measures},
        )  # fmt: skip

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _progress(self, solved: bool) -> float:
        sources: Sequence[str] = self.asked.sources
        if solved or not sources:
            return float(solved)
        return UNSOLVED * sum(source in self.read for source in sources) / len(sources)

    def _beginning(self, text: str) -> str:
        return f": {cut(one_line(text), SNIPPET)}" if self.asked.snippets else ""

    def _shown(self, said: str) -> Observation:
        lines = [self.asked.question, *(f"File: {name}" for name in self.attached.files)]
        if self.step_number:
            lines += [f"So far: {cut(one_line(said), LONGEST) or '(nothing)'}"]
            lines += [f"Step {self.step_number + 1} of {self.asked.steps}."]
        return Observation("\n".join(lines))
