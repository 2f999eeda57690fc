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
from marft.config.settings import SmallCount
from marft.envs.paths import AbsolutePath
from marft.envs.table_rows import TablePath
from marft_envs.gaia.generator import generate_question
from marft_envs.gaia.library import Attachments, Page, PageLibrary, load_library
from marft_envs.gaia.loading import attachment_folder, load_tasks
from marft_envs.gaia.script import GaiaScript
from marft_envs.gaia.session import GaiaSession, GaiaTask
from marft_envs.generated import GeneratedEnvironment, GeneratedTask

Level = Literal[1, 2, 3]
Format = Literal[".csv", ".json", ".md", ".txt"]


class Gaia(GeneratedEnvironment):
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
    files: AbsolutePath = ""  # folder of attached files; "": the folder of the metadata
    pages: AbsolutePath = ""  # folder of searchable text files, for questions from metadata; "": no pages
    # rows with a hidden answer, as in GAIA's own test split: error raises an error, skip skips them
    ungradable: Literal["error", "skip"] = "error"
    # difficulty levels of the questions
    levels: Annotated[tuple[Level, ...], Strict(False), Field(min_length=1)] = (1, 2, 3)
    formats: Annotated[tuple[Format, ...], Strict(False), Field(min_length=1)] = (
        ".csv",
        ".json",
        ".md",
        ".txt",
    )  # file formats in generated questions
    max_steps: SmallCount = 1  # maximum turns of the team; the first FINAL ANSWER ends the episode earlier
    # count an answer only after FINAL ANSWER:; if false, the whole text of the last step counts too
    strict: bool = True
    max_results: SmallCount = 5  # maximum pages in a search result
    snippets: bool = True  # show the beginning of each page in search results

    @model_validator(mode="after")
    def _check_settings(self) -> Gaia:
        if not (self.path or self.test_path) and (self.pages or self.files):
            raise PydanticCustomError(
                "gaia", "pages and files are for questions from a file; name it: test_path = 'metadata.jsonl'"
            )
        return self

    @property
    def episode_limit(self) -> int:
        """Maximum turns in an episode."""
        return self.max_steps

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a question on a random level."""
        return generate_question(random, random.choice(self.levels), self.formats)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the questions of a split, from files or generated.

        Raises:
            ValueError: a file is unreadable or a row is invalid. The message names it and the remedy.
        """
        if not (self.path or self.test_path):
            return super().tasks(split)
        # load now, pages included, even for generated training questions: errors then appear before hours of training
        loaded = self._tasks_by_split
        return loaded[split] if self.path or split == "test" else super().tasks(split)

    def start(self, task: Task, seed: int) -> GaiaSession:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a question."""
        data = task.data
        gaia_task = GaiaTask(
            task.prompt,
            str(data["answer"]),
            tuple(data.get("sources", ())),
            self.max_steps,
            self.strict,
            self.max_results,
            self.snippets,
        )
        if "pages" in data:
            library = PageLibrary([Page(title, text) for title, text in data["pages"].items()])
            return GaiaSession(gaia_task, library, Attachments(data["files"]))
        name = str(data["file"])
        table = self.test_path if task.id in self._test_ids else self.path
        files = {name: attachment_folder(table, self.files) / name} if name else {}
        return GaiaSession(gaia_task, self._page_library, Attachments(files))

    def script(self, skill: float = 1.0) -> GaiaScript | None:
        """Return a policy for ``searcher``, ``answerer`` and ``solver`` on generated questions; None for questions
        from files.
        """
        return None if self.path or self.test_path else GaiaScript(skill)

    @cached_property
    def _page_library(self) -> PageLibrary:
        return load_library(self.pages) if self.pages else PageLibrary(())

    @cached_property
    def _test_ids(self) -> frozenset[str]:
        """Ids of the questions from ``test_path``; their files are in its folder."""
        return frozenset(task.id for task in self._tasks_by_split["test"]) if self.test_path else frozenset()

    @cached_property
    def _tasks_by_split(self) -> dict[Split, list[Task]]:
        return load_tasks(
            self.path,
            self.test_path,
            self.files,
            self.levels,
            self.ungradable == "skip",
            self._page_library.digest,
        )
