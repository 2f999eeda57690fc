"""One question: tools to look things up, and an answer that is held to the right one."""

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

LONGEST = 500  # characters of what was said before, that are shown again
SNIPPET = 60  # characters of a page in a list of results
UNSOLVED = 0.9  # progress of somebody who has read all, and says something else


class Asked(NamedTuple):
    """A question, and what grades its answer.

    Args:
        sources: titles and files that it takes; () where nobody knows.
        steps: in which the team may look things up before it has to answer.
        strict: whether an answer counts after FINAL ANSWER: alone.
        snippets: whether results of a search show how pages begin.
    """

    question: str
    right: str
    sources: tuple[str, ...]
    steps: int
    strict: bool
    results: int
    snippets: bool


class GaiaSession:
    """The team is asked, looks things up, and answers. It is over with the first answer that is stated, and with the
    last step."""

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
        return self._shown("")

    async def step(self, actions: JointAction) -> Step:
        """Take what the team says: its answer, where it states one, or what it knows so far."""
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
        """Nothing is held."""

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
