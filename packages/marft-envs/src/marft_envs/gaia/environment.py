"""GAIA's questions, from its own files, and questions in its manner that are drawn and need no network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.environment import Split
from marft.common.types import Task
from marft.config.settings import Few
from marft.envs.paths import Place
from marft.envs.rows import TablePath
from marft_envs.drawn import Drawing, Drawn
from marft_envs.gaia.drawing import drawn
from marft_envs.gaia.library import Attached, Library, Page, library_of
from marft_envs.gaia.loading import folder_of, tasks_of_tables
from marft_envs.gaia.script import Researcher
from marft_envs.gaia.session import Asked, GaiaSession

Level = Literal[1, 2, 3]
Format = Literal[".csv", ".json", ".md", ".txt"]


class Gaia(Drawn):
    """Questions with one short answer each, which agents search pages and read files for.

    The answer is stated after ``FINAL ANSWER:`` and graded by GAIA's quasi-exact match.
    Without ``path`` they are drawn, each in a small world of its own: level 1 takes one page or one file, level 2
    several one after another, level 3 several and a computation. GAIA's authors ask that its public questions are in
    nobody's training: as ``test_path`` alone they are all the test, and drawn ones are learned from.
    """

    stream: ClassVar[str] = "Gaia"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    session: ClassVar[type] = GaiaSession

    path: TablePath = ""  # GAIA's metadata (.jsonl, .parquet, …), its files beside it; "": questions are drawn
    test_path: TablePath = ""  # the same, for the test split; "": a tenth of path, or drawn
    files: Place = ""  # folder of attached files; "": where the metadata is
    pages: Place = ""  # folder of texts that are searched, for questions from files; "": there are none
    ungradable: Literal["refuse", "leave_out"] = "refuse"  # rows whose answer is not told, as in GAIA's own test
    levels: Annotated[tuple[Level, ...], Strict(False), Field(min_length=1)] = (1, 2, 3)  # that are asked
    formats: Annotated[tuple[Format, ...], Strict(False), Field(min_length=1)] = (
        ".csv", ".json", ".md", ".txt",
    )  # of files of drawn questions  # fmt: skip
    steps: Few = 1  # turns of the team: it is over with the first FINAL ANSWER, and with the last of them
    strict: bool = True  # an answer counts after FINAL ANSWER: alone; false: in the last step, the whole text will do
    results: Few = 5  # pages that a search finds, at most
    snippets: bool = True  # results show how pages begin

    @model_validator(mode="after")
    def _fit_together(self) -> Gaia:
        if not (self.path or self.test_path) and (self.pages or self.files):
            raise PydanticCustomError(
                "gaia", "pages and files are for questions from a file; name it: test_path = 'metadata.jsonl'"
            )
        return self

    @property
    def episode_limit(self) -> int:
        """The turns of the team."""
        return self.steps

    def draw(self, random: Random) -> Drawing:
        """A question, of any of the levels."""
        return drawn(random, random.choice(self.levels), self.formats)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Questions of a split: of files, or drawn.

        Raises:
            ValueError: a file cannot be read, or a row used; the message says which and what to do.
        """
        if not (self.path or self.test_path):
            return super().tasks(split)
        loaded = self._loaded  # and pages, also where others are learned from: before hours of that
        return loaded[split] if self.path or split == "test" else super().tasks(split)

    def start(self, task: Task, seed: int) -> GaiaSession:  # noqa: ARG002  nothing here is random
        """One attempt at a question."""
        data = task.data
        asked = Asked(
            task.prompt, str(data["answer"]), tuple(data.get("sources", ())), self.steps, self.strict, self.results,
            self.snippets,
        )  # fmt: skip
        if "pages" in data:
            library = Library([Page(title, text) for title, text in data["pages"].items()])
            return GaiaSession(asked, library, Attached(data["files"]))
        name = str(data["file"])
        table = self.test_path if task.id in self._tested else self.path
        attached = {name: folder_of(table, self.files) / name} if name else {}
        return GaiaSession(asked, self._library, Attached(attached))

    def script(self, skill: float = 1.0) -> Researcher | None:
        """Plays ``searcher``, ``answerer`` and ``solver`` where questions are drawn; of files nobody knows the way."""
        return None if self.path or self.test_path else Researcher(skill)

    @cached_property
    def _library(self) -> Library:
        return library_of(self.pages) if self.pages else Library(())

    @cached_property
    def _tested(self) -> frozenset[str]:
        """The ids of questions of ``test_path``, whose files are beside that."""
        return frozenset(task.id for task in self._loaded["test"]) if self.test_path else frozenset()

    @cached_property
    def _loaded(self) -> dict[Split, list[Task]]:
        return tasks_of_tables(
            self.path, self.test_path, self.files, self.levels, self.ungradable == "leave_out", self._library.digest
        )
