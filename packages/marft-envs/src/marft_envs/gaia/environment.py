"""GAIA questions from the benchmark's files, and similar generated questions without network access."""

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
    """Questions with one short answer each; agents search pages and read files.

    The answer follows ``FINAL ANSWER:`` and is graded by GAIA's quasi-exact match.

    Without ``path`` the questions are generated, each in a small world of its own. Level 1 needs one page or one
    file. Level 2 needs several, one after another. Level 3 needs several and a computation. GAIA's authors ask not
    to train on its public questions. Set ``test_path`` alone to test on them and train on generated questions.
    """

    stream: ClassVar[str] = "Gaia"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    session: ClassVar[type] = GaiaSession

    # GAIA's metadata (.jsonl, .parquet, …), with its attached files in the same folder; "": generate questions
    path: TablePath = ""
    test_path: TablePath = ""  # metadata for the test split; "": a tenth of path, or generated questions
    files: Place = ""  # folder of attached files; "": the folder of the metadata
    pages: Place = ""  # folder of searchable text files, for questions from metadata; "": no pages
    # action for rows with a hidden answer, as in GAIA's own test split: refuse to load, or leave them out
    ungradable: Literal["refuse", "leave_out"] = "refuse"
    # difficulty levels of the questions
    levels: Annotated[tuple[Level, ...], Strict(False), Field(min_length=1)] = (1, 2, 3)
    formats: Annotated[tuple[Format, ...], Strict(False), Field(min_length=1)] = (
        ".csv", ".json", ".md", ".txt",
    )  # file formats in generated questions  # fmt: skip
    steps: Few = 1  # maximum turns of the team; the first FINAL ANSWER ends the episode earlier
    # count an answer only after FINAL ANSWER:; if false, the whole text of the last step counts too
    strict: bool = True
    results: Few = 5  # maximum pages in a search result
    snippets: bool = True  # show the beginning of each page in search results

    @model_validator(mode="after")
    def _fit_together(self) -> Gaia:
        if not (self.path or self.test_path) and (self.pages or self.files):
            raise PydanticCustomError(
                "gaia", "pages and files are for questions from a file; name it: test_path = 'metadata.jsonl'"
            )
        return self

    @property
    def episode_limit(self) -> int:
        """Maximum turns in an episode."""
        return self.steps

    def draw(self, random: Random) -> Drawing:
        """Generate a question on a random level."""
        return drawn(random, random.choice(self.levels), self.formats)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the questions of a split, from files or generated.

        Raises:
            ValueError: a file is unreadable or a row is invalid. The message names it and the remedy.
        """
        if not (self.path or self.test_path):
            return super().tasks(split)
        # load now, pages included, even for generated training questions: errors then appear before hours of training
        loaded = self._loaded
        return loaded[split] if self.path or split == "test" else super().tasks(split)

    def start(self, task: Task, seed: int) -> GaiaSession:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a question."""
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
        """Return a policy for ``searcher``, ``answerer`` and ``solver`` on generated questions; None for questions
        from files.
        """
        return None if self.path or self.test_path else Researcher(skill)

    @cached_property
    def _library(self) -> Library:
        return library_of(self.pages) if self.pages else Library(())

    @cached_property
    def _tested(self) -> frozenset[str]:
        """Ids of the questions from ``test_path``; their files are in its folder."""
        return frozenset(task.id for task in self._loaded["test"]) if self.test_path else frozenset()

    @cached_property
    def _loaded(self) -> dict[Split, list[Task]]:
        return tasks_of_tables(
            self.path, self.test_path, self.files, self.levels, self.ungradable == "leave_out", self._library.digest
        )
