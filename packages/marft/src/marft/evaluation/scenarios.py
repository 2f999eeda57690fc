"""Frozen set of scenarios, a JSON file with tasks, modes, number of attempts and seed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from marft.common import atomic
from marft.common.errors import UserError
from marft.common.texts import join_names
from marft.common.types import Task
from marft.config.interfaces.environment import Split
from marft.config.load import first_problem
from marft.config.run import RunSettings
from marft.envs.tasks import digest_tasks, read_tasks
from marft.evaluation.cohorts import collect_fields, group_tasks_by_field
from marft.evaluation.evaluate import DIGEST_DIGITS, Mode

FORMAT = "scenarios of MARFT, 1"
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,59}")


class _StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Scenario(_StrictModel):
    id: str = Field(min_length=1)
    digest: str


class _ScenarioFile(_StrictModel):
    """Schema for scenario files."""

    format: Literal["scenarios of MARFT, 1"]
    environment: str
    digest: str
    split: Split
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    modes: list[Mode] = Field(min_length=1)
    attempts: Annotated[int, Field(ge=1, le=10_000)]
    tasks: list[_Scenario] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class ScenarioSet:
    """Frozen set of scenarios.

    Args:
        name: name of the file, included in the names of evaluations.
        environment: name of the environment.
        digests: digest of each task by ID, in playing order; covers the ID, the prompt and the plain part of the data.
    """

    name: str
    environment: str
    split: Split
    seed: int
    modes: tuple[Mode, ...]
    attempts: int
    digests: Mapping[str, str]

    @property
    def digest(self) -> str:
        """Digest of the contents without the name; equal digests mean equal scenarios."""
        return hashlib.sha256(json.dumps(self._to_table()).encode()).hexdigest()

    def _to_table(self) -> dict[str, object]:
        return {
            "format": FORMAT,
            "environment": self.environment,
            "split": self.split,
            "seed": self.seed,
            "modes": [*self.modes],
            "attempts": self.attempts,
            "tasks": [{"id": task, "digest": digest} for task, digest in self.digests.items()],
        }

    def write(self, path: Path) -> None:
        """Write the file with one task a line; equal sets give equal bytes."""
        head = {**self._to_table(), "digest": self.digest}
        tasks = ",\n".join(f"    {json.dumps(task)}" for task in head.pop("tasks"))  # type: ignore[attr-defined]
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items())
        atomic.write_file(path, f'{{\n{lines},\n  "tasks": [\n{tasks}\n  ]\n}}\n')

    def load_tasks(self, run: RunSettings) -> list[Task]:
        """Return the tasks from the environment of a run.

        Raises:
            UserError: tasks are missing or differ from the digests; the message names them.
        """
        task_by_id = {task.id: task for task in read_tasks(run.environment, self.split)}
        missing = [task for task in self.digests if task not in task_by_id]
        different = [
            t
            for t, digest in self.digests.items()
            if t in task_by_id and digest_tasks([task_by_id[t]])[:DIGEST_DIGITS] != digest
        ]
        if missing or different:
            problems = [f"{join_names(missing)} {_verb(missing)} gone"] if missing else []
            problems += (
                [f"{join_names(different)} {_verb(different)} another task now (prompt or data)"] if different else []
            )
            raise UserError(
                f"scenarios {self.name!r} are not those of environment {run.environment.name!r}, {self.split} split: "
                f"{'; '.join(problems)}. Bring the environment back to what it was, or freeze a new set: marft "
                "scenarios"
            )
        return [task_by_id[task] for task in self.digests]


def freeze_scenarios(
    run: RunSettings, name: str, split: Split, number: int, by: str, modes: Sequence[Mode], attempts: int
) -> ScenarioSet:
    """Return a set with the first tasks of a split.

    Args:
        number: number of tasks.
        by: a field of the tasks; the set is balanced over its values as far as possible. "" keeps the task order.

    Raises:
        UserError: the tasks have no such field, or the name is invalid.
    """
    check_name(name)
    tasks = [*read_tasks(run.environment, split)]
    selected = {task.id for task in (_interleave_groups(tasks, by) if by else tasks)[:number]}
    digests = {task.id: digest_tasks([task])[:DIGEST_DIGITS] for task in tasks if task.id in selected}
    return ScenarioSet(name, run.environment.name, split, run.seed, tuple(modes), attempts, digests)


def read_scenario_set(path: Path) -> ScenarioSet:
    """Read a file of scenarios.

    Raises:
        UserError: the file is invalid or was changed after it was written.
    """
    check_name(path.stem)
    try:
        data = _ScenarioFile.model_validate(atomic.read_json(path))
    except ValidationError as error:
        raise UserError(f"{path} is no set of scenarios: {first_problem(error)}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the scenarios of {path}: {error}") from error
    digests = {task.id: task.digest for task in data.tasks}
    if len(digests) < len(data.tasks):
        raise UserError(f"{path} names a task twice")
    modes = tuple(dict.fromkeys(data.modes))
    scenarios = ScenarioSet(path.stem, data.environment, data.split, data.seed, modes, data.attempts, digests)
    if scenarios.digest != data.digest:
        raise UserError(f"{path} was changed since it was written; freeze a new set with:  marft scenarios")
    return scenarios


def check_name(name: str) -> None:
    """Check a scenario set's name.

    Raises:
        UserError: the name cannot be part of an evaluation's file name.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise UserError(
            f"scenarios cannot be called {name!r}: evaluations bear the file's name, so it is of letters, digits, '_', "
            "'-' and '.'"
        )


def _interleave_groups(tasks: Sequence[Task], by: str) -> list[Task]:
    """Return the tasks in round-robin order over the values of a field."""
    cohorts = group_tasks_by_field(collect_fields(tasks), by).values()
    groups = [[task for task in tasks if task.id in cohort] for cohort in cohorts]
    return [task for turn in zip_longest(*groups) for task in turn if task is not None]


def _verb(tasks: Sequence[str]) -> str:
    return "is" if len(tasks) == 1 else "are"
