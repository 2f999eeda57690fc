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

from marft.agents.answers import graded_text
from marft.common.errors import UserError
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Split
from marft.config.settings import NonNegativeCount, did_you_mean
from marft.envs.splits import split_beside_tests
from marft.envs.table_rows import Row, TablePath, read_table
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft_envs.instructions.kinds import (
    JSON_SCHEMA_KIND,
    KINDS,
    Instruction,
    Topic,
    check_instructions,
    from_dicts,
    to_dicts,
)
from marft_envs.instructions.writer import TOPICS, InstructionsScript, write_text

MAX_ATTEMPTS = 1000  # maximum draws of compatible instructions
GENERATED_KINDS = tuple(name for name in KINDS if name != JSON_SCHEMA_KIND)


class Instructions(GeneratedEnvironment):
    """Instruction following with a checker function per instruction, as in IFEval.

    Without ``path``, a task is a topic with up to ``max_instructions`` compatible instructions. With ``path``, tasks
    are rows of a table in IFEval's layout. With only ``test_path``, the test split alone is from a table. The reward is
    1 if every instruction is followed, or the fraction of followed instructions.
    """

    stream: ClassVar[str] = "Instructions"
    one_step: ClassVar[bool] = True
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    path: TablePath = Field(
        default="",
        description=(
            "table with key, prompt, instruction_id_list and kwargs, or Hugging Face dataset id; default: generated "
            "tasks"
        ),
    )
    test_path: TablePath = Field(
        default="", description="table of the test split, also with generated tasks; default: a tenth of the tasks"
    )
    subset: str = Field(default="", description="dataset configuration on the Hugging Face Hub")
    split: str = Field(default="train", description="split to read from a dataset with several splits")
    unknown: Literal["error", "skip"] = Field(
        default="error", description="rows with unknown instructions: raise an error, or skip"
    )
    limit: NonNegativeCount = Field(default=0, description="maximum tasks per split, for table rows; 0: no limit")
    kinds: Annotated[tuple[str, ...], Strict(False), Field(min_length=1)] = Field(
        default=GENERATED_KINDS, description="ids of instructions for generated tasks"
    )
    max_instructions: Annotated[int, Field(ge=1, le=8)] = Field(
        default=3, description="maximum instructions per generated task"
    )
    min_instructions: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1, description="minimum instructions per generated task"
    )
    max_words: Annotated[int, Field(ge=9, le=10_000)] = Field(
        default=60, description="maximum requested length, in words"
    )
    grading: Literal["strict", "loose"] = Field(
        default="strict", description="loose: a text also counts without its first or last line, and without stars"
    )
    reward: Literal["all", "fraction"] = Field(
        default="fraction",
        description="all: 1 if the text follows every instruction, else 0; fraction: share of followed instructions",
    )

    @field_validator("kinds")
    @classmethod
    def _check_kinds(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        for name in kinds:
            if name not in KINDS:
                raise PydanticCustomError(
                    "kind",
                    "no instruction is called {name}{hint}",
                    {"name": repr(name), "hint": did_you_mean(name, KINDS)},
                )
        return kinds

    @model_validator(mode="after")
    def _check_settings(self) -> Instructions:
        groups = {KINDS[name].group or name for name in self.kinds if not KINDS[name].is_exclusive}
        if self.min_instructions > max(1, min(self.max_instructions, len(groups))):
            raise PydanticCustomError(
                "instructions",
                "min_instructions: there are no so many kinds that go together, or max_instructions is less",
            )
        return self

    @classmethod
    def known_values(cls) -> Mapping[str, Sequence[str]]:
        """Return the ids of every kind."""
        return {"kinds": sorted(KINDS)}

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks for a split.

        Raises:
            UserError: a table cannot be read, or a row cannot be used. The message says which, and the remedy.
        """
        return self._table_tasks[split] if self.path else super().tasks(split)

    def external_test_tasks(self) -> Sequence[Task]:
        """Return the rows at ``test_path`` if the training tasks are generated; else no tasks."""
        return self._table_tasks["test"] if self.test_path and not self.path else ()

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a topic with instructions that the scripted writer can follow together.

        Raises:
            UserError: no draw found such instructions.
        """
        for _ in range(MAX_ATTEMPTS):
            topic = random.choice(TOPICS)
            instructions = self._draw_instructions(random, topic)
            is_short = all(instruction.parameters.get("num_words", 0) <= self.max_words for instruction in instructions)
            if (
                is_short
                and len(instructions) >= self.min_instructions
                and write_text(topic, instructions, random) is not None
            ):
                break
        else:
            raise UserError(
                f"environment: nobody can follow {self.min_instructions} of the kinds {', '.join(self.kinds)} together "
                f"in {self.max_words} words; name others (kinds), ask for fewer (min_instructions) or for longer texts "
                "(max_words)"
            )
        instruction_rows = to_dicts(instructions)
        content = json.dumps(
            [topic.name, sorted(json.dumps(instruction, sort_keys=True) for instruction in instruction_rows)]
        )
        prompt = " ".join([topic.request, *(instruction.format_text() for instruction in instructions)])
        return GeneratedTask(
            content, prompt, {"topic": topic.name, "instructions": instruction_rows, "fewest_steps": 1}
        )

    def _draw_instructions(self, random: Random, topic: Topic) -> list[Instruction]:
        """Draw instructions from different groups. An instruction that must stand alone is the only one."""
        count, instructions, groups = (
            random.randint(self.min_instructions, self.max_instructions),
            list[Instruction](),
            set[str](),
        )
        for name in random.sample(self.kinds, len(self.kinds)):
            kind = KINDS[name]
            group = kind.group or name
            if group not in groups and not (kind.is_exclusive and (instructions or self.min_instructions > 1)):
                instructions.append(Instruction(name, kind.draw_parameters(random, topic)))
                groups.add(group)
            if len(instructions) == count or (kind.is_exclusive and instructions):
                break
        return instructions

    def start(self, task: Task, seed: int) -> InstructionsSession:  # noqa: ARG002  nothing here is random
        """Create a session."""
        return InstructionsSession(task, self.grading == "loose", self.reward == "fraction")

    def script(self, skill: float = 1.0) -> InstructionsScript | None:
        """Return the scripted policy for generated tasks; None for table rows."""
        return None if self.path else InstructionsScript(skill)

    @cached_property
    def _table_tasks(self) -> Mapping[Split, Sequence[Task]]:
        tests: dict[str, Task] = {}
        for task in self._read_tasks(self.test_path) if self.test_path else ():
            tests.setdefault(task.prompt, task)
        tasks = self._read_tasks(self.path) if self.path else ()
        return split_beside_tests([*tests.values()] if self.test_path else None, tasks, self.limit)

    def _read_tasks(self, path: str) -> Iterator[Task]:
        used_names = set[str]()
        for number, row in enumerate(read_table(path, self.subset, self.split)):
            try:
                instructions = parse_instructions(row)
            except LookupError as error:
                if self.unknown == "skip":
                    continue
                raise UserError(
                    f"environment: {row.location}: {error.args[0]}; put it right, or leave such rows out "
                    '(unknown = "skip")'
                ) from error
            name = f"{Path(path).stem}/{row.text('key') if 'key' in row.cells else number}"
            name = name if name not in used_names else f"{name}#{number}"
            used_names.add(name)
            yield Task(name, row.text("prompt"), {"instructions": to_dicts(instructions)})


def parse_instructions(row: Row) -> list[Instruction]:
    """Parse the instructions in a row of IFEval's layout: ``instruction_id_list``, and ``kwargs`` with a table each.

    Raises:
        LookupError: an instruction is unknown, or lacks a parameter.
        UserError: a column is missing or malformed.
    """
    names, parameter_tables = (_read_list(row, column) for column in ("instruction_id_list", "kwargs"))
    if len(names) != len(parameter_tables) or not names:
        raise UserError(
            f"environment: {row.location}: {len(names)} instructions and {len(parameter_tables)} tables of parameters; "
            "each has one"
        )
    instructions = []
    for name, table in zip(names, parameter_tables, strict=True):
        if str(name) not in KINDS:
            raise LookupError(f"no instruction is called {name!r}{did_you_mean(str(name), KINDS)}")
        kwargs = {key: value for key, value in dict(table or {}).items() if value is not None}
        if problem := KINDS[str(name)].parameter_error(kwargs):
            raise LookupError(f"{name} {problem}")
        instructions.append(Instruction(str(name), kwargs))
    return instructions


def _read_list(row: Row, column: str) -> list[Any]:
    cell: Any = row.cell(column)
    try:
        cell = json.loads(cell) if isinstance(cell, str) else cell
    except (ValueError, RecursionError) as error:
        raise UserError(f"environment: {row.location}: column {column!r} is not JSON: {error}") from error
    tables = column != "kwargs" or (
        isinstance(cell, list) and all(isinstance(table_cell, dict | None) for table_cell in cell)
    )
    if not isinstance(cell, list) or not tables:
        raise UserError(f"environment: {row.location}: column {column!r} holds no list, as IFEval has it")
    return cell


class InstructionsSession:
    """Session with a single step: the team's answer is the text."""

    def __init__(self, task: Task, loose: bool, fraction: bool) -> None:
        self.task, self.loose, self.fraction = task, loose, fraction

    async def reset(self) -> Observation:
        """Return the prompt."""
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        """Grade the answering agent's text."""
        text = graded_text(actions.answer)
        followed_flags = check_instructions(from_dicts(self.task.data["instructions"]), text, self.loose)
        share, solved = sum(followed_flags) / len(followed_flags), all(followed_flags)
        return Step(
            Observation(""),
            share if self.fraction else float(solved),
            terminated=True,
            success=solved,
            info={"progress": share},
        )

    async def close(self) -> None:
        """No-op: the session holds no resources."""
