"""GAIA questions from the benchmark's files, and similar generated questions without network access.

Metadata has one row per question, with level, answer and attached file. A session offers lookup tools and grades the
answer. The scripted policy reads tool results, calls the next tools, and states the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import graded_text
from marft.agents.prompt_messages import split_messages
from marft.common.errors import UserError
from marft.common.texts import single_line, truncate
from marft.common.types import JointAction, Observation, Step, Task, ToolCall
from marft.config.interfaces.environment import Split, tool
from marft.config.paths import AbsolutePath
from marft.config.settings import SmallCount
from marft.envs.scripted_policy import PolicyInput, ScriptedReply
from marft.envs.splits import assign_split_by_share, normalize_question
from marft.envs.table_rows import Row, TablePath, read_table
from marft.envs.tasks import DIGEST_KEY, digest_content
from marft_envs.gaia.generator import generate_question
from marft_envs.gaia.library import Attachments, Page, PageLibrary, load_library, text_part
from marft_envs.gaia.plans import PARSERS, KnownFacts, MissingFact, execute_plan, file_suffix, parse_fields
from marft_envs.gaia.scoring import answers_match, extract_answer
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft_envs.tool_use.toolbox import evaluate

RESULT_PATTERN = re.compile(r"^\[(\d+)\] ([^:\n]+?)(?::.*)?$", re.MULTILINE)
COMPUTED_PATTERN = re.compile(r"^([^=\n]+) = (-?[\d.]+)$")
FOUND_PREFIX = "Found: "
NOTHING_FOUND = "I found nothing."
GIVE_UP_TURNS = 12  # turns after which a weak player gives up


@dataclass(frozen=True)
class GaiaScript:
    """Scripted policy for ``searcher``, ``answerer`` and all other roles.

    ``searcher`` looks facts up and reports the result. ``answerer`` states the reported answer. Any other role does
    both. A weak player searches for part of a name, reads a wrong page or line, or reports no result. A weak
    answerer ignores messages.

    Args:
        skill: fraction of well-played turns.
    """

    skill: float

    def __call__(self, cue: PolicyInput) -> str | ScriptedReply:
        """Return the agent's next text or tool calls."""
        is_good = cue.random.random() < self.skill
        if cue.role == "answerer":
            _, messages = split_messages(cue.last_message)
            results = [message.text.partition("\n")[0] for message in messages if message.text.startswith(FOUND_PREFIX)]
            return f"FINAL ANSWER: {results[0].removeprefix(FOUND_PREFIX) if results and is_good else 'unknown'}"
        facts = _collect_facts(cue.messages, cue.task.data["files"])
        prefix = "Found:" if cue.role == "searcher" else "FINAL ANSWER:"
        try:
            answer = execute_plan(cue.task.data["plan"], facts)
        except MissingFact as missing:
            if not is_good and cue.random.random() < 0.5:
                return NOTHING_FOUND
            calls = _make_calls(missing, facts, cue.task.prompt, cue.random, is_good)
            return ScriptedReply("", calls) if calls and len(cue.messages) < GIVE_UP_TURNS * 2 else NOTHING_FOUND
        return f"{prefix} {answer if is_good else _wrong_value(facts, answer, cue.random)}"


def _collect_facts(chat: Sequence[Mapping[str, object]], files: Mapping[str, str]) -> KnownFacts:
    """Collect the facts in tool results."""
    facts = KnownFacts()
    for message in chat:
        if message["role"] != "tool":
            continue
        text = str(message["content"])
        first, _, body = text.partition("\n")
        if first in files:
            facts.files[first] = PARSERS[file_suffix(first)](body)
        elif match := COMPUTED_PATTERN.match(text):
            facts.computed[match[1]] = match[2]
        elif text.startswith("["):
            facts.page_numbers |= {title: int(number) for number, title in RESULT_PATTERN.findall(text)}
        else:
            facts.pages[first] = parse_fields(body)
    return facts


def _make_calls(
    missing: MissingFact, facts: KnownFacts, question: str, random: Random, is_good: bool
) -> tuple[ToolCall, ...]:
    """Return tool calls for the missing facts.

    For pages named in the question, the first search uses the whole question. Further searches use the titles of
    missing pages.
    """
    if missing.kind == "file":
        return (_make_call("read_file", name=missing.names[0]),)
    if missing.kind == "value":
        return tuple(_make_call("calculate", expression=expression) for expression in missing.names)
    searched_titles = [title for title in missing.names if title not in facts.page_numbers]
    if searched_titles:
        if is_good and not facts.page_numbers and any(title in question for title in searched_titles):
            return (_make_call("search", query=question),)
        return tuple(_make_call("search", query=title if is_good else title.split()[0]) for title in searched_titles)
    numbers = list(facts.page_numbers.values())
    return tuple(
        _make_call("open_page", page=facts.page_numbers[title] if is_good else random.choice(numbers))
        for title in missing.names
    )


def _wrong_value(facts: KnownFacts, expected: str, random: Random) -> str:
    """Return a wrong value from the sources, as a mistake."""
    values_read = [value for fields in facts.pages.values() for value in fields.values()]
    values_read += [cell for rows in facts.files.values() for cells in rows[1:] for cell in cells]
    wrong_values = [value for value in values_read if value != expected]
    return random.choice(wrong_values) if wrong_values else expected


def _make_call(name: str, /, **arguments: object) -> ToolCall:
    return ToolCall(name, json.dumps(arguments))


MAX_PREVIOUS = 500  # characters of the previous text that are shown again
MAX_SNIPPET = 60  # characters of a page in search results
MAX_UNSOLVED = 0.9  # maximum progress without a correct answer, after reading all sources


class GaiaSession:
    """Session for one question: the team looks facts up and answers.

    The first stated answer or the last step ends the episode.
    """

    def __init__(self, settings: Gaia, task: Task, library: PageLibrary, attachments: Attachments) -> None:
        self.settings, self.task, self.library, self.attachments = settings, task, library, attachments
        self.step_number, self.call_count = 0, 0
        self.sources_read: set[str] = set()

    @tool
    def search(self, query: str) -> str:
        """Find pages by words."""
        self.call_count += 1
        results = self.library.search(query, self.settings.max_results)
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
        over = answer is not None or self.step_number >= self.settings.max_steps
        if answer is None and over and not self.settings.require_final_answer:
            answer = text.strip()
        solved = answer is not None and answers_match(answer, str(self.task.data["answer"]))
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
        sources: Sequence[str] = self.task.data.get("sources", ())
        if solved or not sources:
            return float(solved)
        return MAX_UNSOLVED * sum(source in self.sources_read for source in sources) / len(sources)

    def _snippet(self, text: str) -> str:
        return f": {truncate(single_line(text), MAX_SNIPPET)}" if self.settings.show_snippets else ""

    def _build_observation(self, previous_text: str) -> Observation:
        lines = [self.task.prompt, *(f"File: {name}" for name in self.attachments.files)]
        if self.step_number:
            lines += [f"So far: {truncate(single_line(previous_text), MAX_PREVIOUS) or '(nothing)'}"]
            lines += [f"Step {self.step_number + 1} of {self.settings.max_steps}."]
        return Observation("\n".join(lines))


ANSWER_COLUMN, HIDDEN_ANSWER = "Final answer", "?"  # column of the answer, and its value where the answer is hidden
SPLIT_NAME = "validation"  # split to read from a data set with several splits
HELD_OUT_SHARE = 0.1


def load_tasks(
    path: str, test_path: str, files: str, levels: Collection[int], skip_ungradable: bool, pages: str = ""
) -> dict[Split, list[Task]]:
    """Return tasks by split.

    A tenth of the questions of ``path`` is for validation. Without ``test_path``, another tenth is for test. No
    test question appears in another split. Without ``path``, only the test split has tasks.

    Args:
        path: metadata for all splits; "" for none.
        test_path: metadata for the test split; "" for none.
        files: folder of attached files; "" for the folder of the metadata.
        levels: levels to keep.
        skip_ungradable: True to leave out questions with a hidden answer.
        pages: digest of the searchable pages. A task's ``content`` is computed from it and the attached file.

    Raises:
        UserError: a table is unreadable or a row is invalid.
    """
    tasks_by_split: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
    if test_path:
        tasks_by_split["test"] = list(_read_tasks(test_path, files, levels, skip_ungradable, pages))
    test_keys = {normalize_question(task.prompt) for task in tasks_by_split["test"]} | {
        task.id for task in tasks_by_split["test"]
    }
    for task in _read_tasks(path, files, levels, skip_ungradable, pages) if path else ():
        if not {normalize_question(task.prompt), task.id} & test_keys:
            tasks_by_split[
                assign_split_by_share(task.prompt, HELD_OUT_SHARE, 0.0 if test_path else HELD_OUT_SHARE)
            ].append(task)
    return tasks_by_split


def attachment_folder(table: str, files: str) -> Path:
    """Return the folder of attached files: ``files``, or else the folder of the table."""
    return Path(files) if files else Path(table).parent


def _read_tasks(path: str, files: str, levels: Collection[int], skip_ungradable: bool, pages: str) -> Iterator[Task]:
    seen: dict[str, str] = {}
    for row in read_table(path, "", SPLIT_NAME):
        question, answer = row.text("Question"), row.text(ANSWER_COLUMN)
        level, name, file = _parse_level(row), row.text("task_id"), row.text("file_name")
        if not answer.strip() or answer.strip() == HIDDEN_ANSWER:
            if skip_ungradable:
                continue
            raise UserError(
                f"environment: {row.location}: the answer is not told ({ANSWER_COLUMN!r} is {answer!r}), as in GAIA's "
                "own test; take its validation questions, or leave such rows out: ungradable = 'skip'"
            )
        if normalize_question(question) in seen:
            raise UserError(
                f"environment: {row.location} asks what {seen[normalize_question(question)]} asks; take one out, so "
                "that nothing held out is trained on"
            )
        seen[normalize_question(question)] = row.location
        _check_file(row, file, attachment_folder(path, files))
        if level in levels:
            data = {"level": level, "answer": answer.strip(), "file": file, "fewest_steps": 1}
            if file or pages:
                content = (attachment_folder(path, files) / file).read_bytes() if file else b""
                data[DIGEST_KEY] = digest_content(pages, content)
            yield Task(name, question, data)


def _parse_level(row: Row) -> int:
    text = row.text("Level").strip()
    if text not in ("1", "2", "3"):
        raise UserError(f"environment: {row.location}: Level is {text!r}; it is 1, 2 or 3")
    return int(text)


def _check_file(row: Row, file: str, folder: Path) -> None:
    if not file:
        return
    if Path(file).name != file:
        raise UserError(f"environment: {row.location}: file_name is {file!r}; it is a name, without folders")
    if not (folder / file).is_file():
        raise UserError(
            f"environment: {row.location}: its file {file!r} is not in {folder}; put it there, or name the folder that "
            "has it: files"
        )


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

    path: TablePath = Field(
        default="",
        description=(
            'GAIA\'s metadata (.jsonl, .parquet, …), with its attached files in the same folder; "": generate questions'
        ),
    )
    test_path: TablePath = Field(
        default="", description='metadata for the test split; "": a tenth of path, or generated questions'
    )
    files: AbsolutePath = Field(default="", description='folder of attached files; "": the folder of the metadata')
    pages: AbsolutePath = Field(
        default="", description='folder of searchable text files, for questions from metadata; "": no pages'
    )
    ungradable: Literal["error", "skip"] = Field(
        default="error", description="rows with a hidden answer, as in GAIA's test split: raise an error, or skip"
    )
    levels: Annotated[tuple[Level, ...], Strict(False), Field(min_length=1)] = Field(
        default=(1, 2, 3), description="difficulty levels of the questions"
    )
    formats: Annotated[tuple[Format, ...], Strict(False), Field(min_length=1)] = Field(
        default=(
            ".csv",
            ".json",
            ".md",
            ".txt",
        ),
        description="file formats in generated questions",
    )
    max_steps: SmallCount = Field(
        default=1, description="maximum turns of the team; the first FINAL ANSWER ends the episode earlier"
    )
    require_final_answer: bool = Field(
        default=True,
        description="count an answer only after FINAL ANSWER:; false: also the whole text of the last step",
    )
    max_results: SmallCount = Field(default=5, description="maximum pages in a search result")
    show_snippets: bool = Field(default=True, description="show the beginning of each page in search results")

    @model_validator(mode="after")
    def _check_settings(self) -> Gaia:
        if not (self.path or self.test_path) and (self.pages or self.files):
            raise PydanticCustomError(
                "gaia", "pages and files are for questions from a file; name it: test_path = 'metadata.jsonl'"
            )
        return self

    @property
    def max_episode_steps(self) -> int:
        """Maximum turns in an episode."""
        return self.max_steps

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a question on a random level."""
        return generate_question(random, random.choice(self.levels), self.formats)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the questions of a split, from files or generated.

        Raises:
            UserError: a file is unreadable or a row is invalid. The message names it and the remedy.
        """
        if not (self.path or self.test_path):
            return super().tasks(split)
        # load now, pages included, even for generated training questions: errors then appear before hours of training
        loaded = self._tasks_by_split
        return loaded[split] if self.path or split == "test" else super().tasks(split)

    def start(self, task: Task, seed: int) -> GaiaSession:  # noqa: ARG002  no randomness in an episode
        """Start an attempt at a question."""
        data = task.data
        if "pages" in data:
            library = PageLibrary([Page(title, text) for title, text in data["pages"].items()])
            return GaiaSession(self, task, library, Attachments(data["files"]))
        name = str(data["file"])
        table = self.test_path if task.id in self._test_ids else self.path
        files = {name: attachment_folder(table, self.files) / name} if name else {}
        return GaiaSession(self, task, self._page_library, Attachments(files))

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
