"""Verifiable instructions, generated or from a table in IFEval's layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, Strict, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import text_said
from marft.agents.environment import Split
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.settings import CountOrNone, did_you_mean
from marft.envs.rows import Row, TablePath, read_table
from marft.envs.splits import bare, split_of
from marft_envs.drawn import Drawing, Drawn
from marft_envs.instructions.kinds import Topic
from marft_envs.instructions.registry import KINDS, NEEDS_A_PACKAGE, Instruction, followed, of_plain, plain
from marft_envs.instructions.script import Writer
from marft_envs.instructions.topics import TOPICS
from marft_envs.instructions.writing import write

TRIES = 1000  # maximum draws of compatible instructions
DRAWN = tuple(name for name in KINDS if name != NEEDS_A_PACKAGE)


class Instructions(Drawn):
    """Instruction following with a checker function per instruction, as in IFEval.

    Without ``path``, a task is a topic with up to ``most`` compatible instructions. With ``path``, tasks are rows of a
    table in IFEval's layout. With only ``test_path``, the test split alone is from a table. The reward is 1 if every
    instruction is followed, or the fraction of followed instructions.
    """

    stream: ClassVar[str] = "Instructions"
    one_step: ClassVar[bool] = True
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    # Table with key, prompt, instruction_id_list and kwargs, or Hugging Face dataset id. Default: generated tasks.
    path: TablePath = ""
    # Table for the test split, also for generated tasks. Default: a tenth of the tasks.
    test_path: TablePath = ""
    subset: str = ""  # dataset configuration on the Hugging Face Hub
    part: str = "train"  # split to read from a dataset with several splits
    # Rows with unknown instructions: refuse raises an error, leave_out skips them.
    unknown: Literal["refuse", "leave_out"] = "refuse"
    limit: CountOrNone = 0  # maximum tasks per split, for table rows; 0: all
    # ids of instructions for generated tasks
    kinds: Annotated[tuple[str, ...], Strict(False), Field(min_length=1)] = DRAWN
    most: Annotated[int, Field(ge=1, le=8)] = 3  # maximum instructions per generated task
    least: Annotated[int, Field(ge=1, le=8)] = 1  # minimum instructions per generated task
    longest: Annotated[int, Field(ge=9, le=10_000)] = 60  # maximum requested length, in words
    # loose: a text also counts without its first or last line, and without stars.
    grading: Literal["strict", "loose"] = "strict"
    # all: 1 if every instruction is followed, else 0. fraction: fraction of followed instructions.
    reward: Literal["all", "fraction"] = "fraction"

    @field_validator("kinds")
    @classmethod
    def _are_known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for name in kinds:
            if name not in KINDS:
                raise PydanticCustomError(
                    "kind",
                    "no instruction is called {name}{hint}",
                    {"name": repr(name), "hint": did_you_mean(name, KINDS)},
                )
        return kinds

    @model_validator(mode="after")
    def _fit_together(self) -> Instructions:
        groups = {KINDS[name].group or name for name in self.kinds if not KINDS[name].alone}
        if self.least > max(1, min(self.most, len(groups))):
            raise PydanticCustomError(
                "instructions", "least: there are no so many kinds that go together, or most is less"
            )
        return self

    @classmethod
    def known_values(cls) -> Mapping[str, Sequence[str]]:
        """Return the ids of every kind."""
        return {"kinds": sorted(KINDS)}

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks for a split.

        Raises:
            ValueError: a table cannot be read, or a row cannot be used. The message says which, and the remedy.
        """
        return self._rows[split] if self.path else super().tasks(split)

    def tested_on(self) -> Sequence[Task]:
        """Return the rows at ``test_path`` if the training tasks are generated; else no tasks."""
        return self._rows["test"] if self.test_path and not self.path else ()

    def draw(self, random: Random) -> Drawing:
        """Generate a topic with instructions that the scripted writer can follow together.

        Raises:
            ValueError: no draw found such instructions.
        """
        for _ in range(TRIES):
            topic = random.choice(TOPICS)
            instructions = self._together(random, topic)
            short = all(one.given.get("num_words", 0) <= self.longest for one in instructions)
            if short and len(instructions) >= self.least and write(topic, instructions, random) is not None:
                break
        else:
            raise ValueError(
                f"environment: nobody can follow {self.least} of the kinds {', '.join(self.kinds)} together in "
                f"{self.longest} words; name others (kinds), ask for fewer (least) or for longer texts (longest)"
            )
        told = plain(instructions)
        content = json.dumps([topic.name, sorted(json.dumps(one, sort_keys=True) for one in told)])
        prompt = " ".join([topic.request, *(one.says() for one in instructions)])
        return Drawing(content, prompt, {"topic": topic.name, "instructions": told, "fewest_steps": 1})

    def _together(self, random: Random, topic: Topic) -> list[Instruction]:
        """Draw instructions from different groups. An instruction that must stand alone is the only one."""
        wanted, found, groups = random.randint(self.least, self.most), list[Instruction](), set[str]()
        for name in random.sample(self.kinds, len(self.kinds)):
            kind = KINDS[name]
            group = kind.group or name
            if group not in groups and not (kind.alone and (found or self.least > 1)):
                found.append(Instruction(name, kind.draw(random, topic)))
                groups.add(group)
            if len(found) == wanted or (kind.alone and found):
                break
        return found

    def start(self, task: Task, seed: int) -> Given:  # noqa: ARG002  nothing here is random
        """Create a session."""
        return Given(task, self.grading == "loose", self.reward == "fraction")

    def script(self, skill: float = 1.0) -> Writer | None:
        """Return the scripted policy for generated tasks; None for table rows."""
        return None if self.path else Writer(skill)

    @cached_property
    def _rows(self) -> Mapping[Split, Sequence[Task]]:
        found: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        seen, held_out = set[str](), set[str]()
        for path, own in ((self.test_path, True), (self.path, False)):
            for task in self._tasks_of(path) if path else ():
                if task.prompt in seen or (not own and bare(task.prompt) in held_out):
                    continue
                seen.add(task.prompt)
                held_out |= {bare(task.prompt)} if own else set()
                split = "test" if own else split_of(task.prompt)
                found["train" if self.test_path and not own and split == "test" else split].append(task)
        return {split: tasks[: self.limit or None] for split, tasks in found.items()}

    def _tasks_of(self, path: str) -> Iterator[Task]:
        taken = set[str]()
        for number, row in enumerate(read_table(path, self.subset, self.part)):
            try:
                instructions = instructions_of(row)
            except LookupError as error:
                if self.unknown == "leave_out":
                    continue
                raise ValueError(
                    f"environment: {row.place}: {error.args[0]}; put it right, or leave such rows out "
                    '(unknown = "leave_out")'
                ) from error
            name = f"{Path(path).stem}/{row.text('key') if 'key' in row.cells else number}"
            name = name if name not in taken else f"{name}#{number}"
            taken.add(name)
            yield Task(name, row.text("prompt"), {"instructions": plain(instructions)})


def instructions_of(row: Row) -> list[Instruction]:
    """Parse the instructions in a row of IFEval's layout: ``instruction_id_list``, and ``kwargs`` with a table each.

    Raises:
        LookupError: an instruction is unknown, or lacks a parameter.
        ValueError: a column is missing or malformed.
    """
    names, given = (_list(row, column) for column in ("instruction_id_list", "kwargs"))
    if len(names) != len(given) or not names:
        raise ValueError(
            f"environment: {row.place}: {len(names)} instructions and {len(given)} tables of parameters; each has one"
        )
    found = []
    for name, table in zip(names, given, strict=True):
        if str(name) not in KINDS:
            raise LookupError(f"no instruction is called {name!r}{did_you_mean(str(name), KINDS)}")
        kwargs = {key: value for key, value in dict(table or {}).items() if value is not None}
        if problem := KINDS[str(name)].problem(kwargs):
            raise LookupError(f"{name} {problem}")
        found.append(Instruction(str(name), kwargs))
    return found


def _list(row: Row, column: str) -> list[Any]:
    cell: Any = row.cell(column)
    try:
        cell = json.loads(cell) if isinstance(cell, str) else cell
    except (ValueError, RecursionError) as error:
        raise ValueError(f"environment: {row.place}: column {column!r} is not JSON: {error}") from error
    tables = column != "kwargs" or (isinstance(cell, list) and all(isinstance(one, dict | None) for one in cell))
    if not isinstance(cell, list) or not tables:
        raise ValueError(f"environment: {row.place}: column {column!r} holds no list, as IFEval has it")
    return cell


class Given:
    """Session with a single step: the team's answer is the text."""

    def __init__(self, task: Task, loose: bool, fraction: bool) -> None:
        self.task, self.loose, self.fraction = task, loose, fraction

    async def reset(self) -> Observation:
        """Return the prompt."""
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        """Grade the answering agent's text."""
        text = text_said(actions.answer)
        told = followed(of_plain(self.task.data["instructions"]), text, self.loose)
        share, solved = sum(told) / len(told), all(told)
        return Step(
            Observation(""), share if self.fraction else float(solved), terminated=True, success=solved,
            info={"progress": share},
        )  # fmt: skip

    async def close(self) -> None:
        """No-op: the session holds no resources."""
