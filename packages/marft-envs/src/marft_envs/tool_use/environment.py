"""Multi-turn tasks with tools over a database, a simulated user, and a checker of the final database."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from random import Random
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.environment import Split
from marft.common.types import Task
from marft.config.folders import from_recipe
from marft.config.plugins import import_path
from marft.config.settings import Fraction, Names, Settings, did_you_mean
from marft.envs.scripts import Script
from marft.envs.splits import share_of
from marft_envs.drawn import Drawing, Drawn
from marft_envs.tool_use.by_turn import ByTurn, Turn, expected_turns
from marft_envs.tool_use.checking import AtTheEnd, Checker, Expected, expected
from marft_envs.tool_use.goals import Calls, Goal, draw_task
from marft_envs.tool_use.loading import Format, Loaded, calls_of, check_records, load, tau2_splits, without
from marft_envs.tool_use.retail_tau2 import RetailTau2
from marft_envs.tool_use.script import script
from marft_envs.tool_use.session import USER, Conversation
from marft_envs.tool_use.simulated import Simulated, made_of, of_classes, tools_of
from marft_envs.tool_use.tables import Tables
from marft_envs.tool_use.toolbox import Toolbox, offered
from marft_envs.tool_use.users import (
    OUT_OF_SCOPE,
    PATIENCE,
    STOP,
    TRANSFER,
    Messages,
    User,
    brief,
    instruction,
    scripted,
)
from marft_envs.tool_use.worlds import WORLDS


def _file(path: str, info: ValidationInfo) -> str:
    return from_recipe(path, info.context) if path else ""


def _class(path: str, info: ValidationInfo) -> str:
    found = import_path(path, info.context)
    if not isinstance(found, type):
        raise ValueError(f"{path!r} is no class")
    try:
        inspect.signature(found).bind()
    except (TypeError, ValueError) as error:
        raise ValueError(f"an object of {path!r} is made without arguments, but: {error}") from error
    return path


FilePath = Annotated[str, Field(pattern=r"^[^\x00]*$"), AfterValidator(_file)]
ClassPath = Annotated[str, AfterValidator(_class)]
TABLES = {"retail": ("users", "orders", "products"), "airline": ("users", "flights", "reservations")}
READING = ("find_", "get_", "list_", "search_")  # name prefixes of the benchmarks' read-only tools
# markers with which a user ends a conversation, by format; STOP alone for other formats
ENDINGS: Mapping[str, tuple[str, ...]] = {"tau2": (STOP, TRANSFER, OUT_OF_SCOPE)}
LAST: Mapping[str, tuple[str, ...]] = {"tau": ("transfer_to_human_agents",)}  # tools that end a conversation
NEEDS: Mapping[Format, tuple[str, ...]] = {"tau": ("database",), "tau2": ("database",), "bfcl": ("answers", "classes")}


class Data(Settings):
    """Public benchmark tasks from files."""

    format: Format  # tau: τ-bench; tau2: τ²-bench; bfcl: multi-turn tasks of the Berkeley function-calling leaderboard
    tasks: FilePath  # task file
    # split_tasks.json of τ²-bench; default: none. Its test list is the test split. A tenth of its train list is the
    # validation split.
    splits: FilePath = ""
    # Task file of the test split. Default: a tenth of the tasks is the test split, and another tenth the validation
    # split.
    test_tasks: FilePath = ""
    database: FilePath = ""  # folder with the tables of a τ-bench domain, or db.json of τ²-bench
    answers: FilePath = ""  # possible_answer file; bfcl only
    policy: FilePath = ""  # file with the rules shown to agents; default: no rules
    classes: dict[str, ClassPath] = {}  # import path of each involved class, as my_package.module:Class; bfcl only

    @model_validator(mode="after")
    def _is_whole(self) -> Data:
        missing = [key for key in NEEDS[self.format] if not getattr(self, key)]
        if missing:
            words = {"format": self.format, "missing": " and ".join(missing)}
            raise PydanticCustomError("data", "format {format!r} needs {missing} too", words)
        if self.splits and (self.format != "tau2" or self.test_tasks):
            raise PydanticCustomError("data", "splits are of format 'tau2' alone, without test_tasks; leave one out")
        if self.classes:
            of_classes(self.classes)
        return self


class ToolUse(Drawn):
    """Service with tools over a database, a user with requests, and a checker.

    A step is one turn. The team acts with its tools, and its answer goes to the user. The user's reply is in the next
    observation. The episode ends when the user ends the conversation.
    """

    stream: ClassVar[str] = "ToolUse"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    # World of the generated tasks. shop: retail with three tools and short texts.
    world: Literal["shop", "retail", "airline"] = "shop"
    goals: Annotated[int, Field(ge=1, le=4)] = 1  # number of requests per user; each needs several calls
    volunteers: Fraction = 0.5  # probability that the user states a fact without being asked
    together: Fraction = 0.5  # probability that a goal is stated together with the previous goal
    # scripted: rule-based user. agent: the user is an agent with role user, and must come last in the organization.
    user: Literal["scripted", "agent"] = "scripted"
    # Maximum number of repeated requests by a scripted user. After that the user gives up.
    patience: Annotated[int, Field(ge=0, le=100)] = PATIENCE
    turns: Annotated[int, Field(ge=1, le=200)] = 20  # maximum user turns; then the episode is truncated
    confirmation: bool = True  # True: tools refuse to write before the user agrees
    # whole: 1 for a solved task, else 0. parts: fraction of completed writes and outputs, 0 if anything else was
    # changed.
    reward: Literal["whole", "parts"] = "whole"
    policy: Names = ("planner", "agent", "solver")  # roles that see the rules in their first observation
    data: Data | None = None  # public benchmark tasks instead of generated tasks

    @property
    def episode_limit(self) -> int:
        """Return the maximum steps per episode: one per user turn."""
        return self.turns

    @property
    def offers(self) -> type[Any]:
        """Return the class with the tool methods."""
        if self.data and self.data.format == "bfcl":
            return of_classes(self.data.classes)
        return self._toolbox

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield conflicts between the user, the roles and the data.

        An agent that plays the user must exist and come last. A scripted user needs a team without that role.
        """
        if self.user == "agent" and (not roles or roles[-1] != USER):
            yield f"environment.user: it needs an agent whose role is {USER!r}, named last; add it, or take 'scripted'"
        if self.user == "scripted" and USER in roles:
            yield f"environment.user: it is scripted, and an agent's role is {USER!r}; rename it, or take 'agent'"
        told = self.policy if not self.data or self.data.policy else ()
        if told and roles and not set(told) & set(roles):
            yield "environment.policy: none of these is in the team; name who is shown the rules, or nobody: []"
        if self.data and self.data.format == "bfcl" and self.user == "agent":
            yield "environment.user: these tasks have all that a user says; take 'scripted'"
        if self.data and self.data.format != "bfcl" and self.world == "shop":
            yield "environment.world: these tasks are of 'retail' or 'airline'; name which"
        if self.data and self.user == "scripted" and self.data.format != "bfcl":
            yield "environment.user: these tasks tell a user in words what it wants; take 'agent', and one to play it"

    def draw(self, random: Random) -> Drawing:
        """Generate a task."""
        data = draw_task(random, WORLDS[self.world], self.goals, self.volunteers, self.together)
        whose = [[goal["aim"], goal["says"], goal["writes"], goal["outputs"]] for goal in data["goals"]]
        content = json.dumps([self.world, data["identity"]["says"], data["batches"], whose])
        return Drawing(content, " ".join(goal["says"] for goal in data["goals"]), data)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks for a split, generated or from files."""
        return self._loaded[split] if self.data else super().tasks(split)

    def start(self, task: Task, seed: int) -> Conversation:  # noqa: ARG002  nothing here is random
        """Create a session."""
        if self.data and self.data.format == "bfcl":
            return self._of_classes(task)
        world, data = WORLDS[self.world], task.data
        drawn = "goals" in data
        base = world.tables(data["database"]) if drawn else self._files.tables

        def fresh() -> tuple[Any, Tables]:
            tables = Tables(base)
            return self._toolbox(tables, strict=drawn), tables

        goals = [Goal(**goal) for goal in data["goals"]] if drawn else []
        calls = [call for goal in goals for call in [*goal.reads, *goal.writes]] if drawn else data["calls"]
        outputs = [output for goal in goals for output in goal.outputs] if drawn else data["outputs"]
        toolbox, tables = fresh()
        wanted = self._known.get(task.id) or expected(fresh, calls, outputs)
        if self.data:  # cached: benchmark states are large, and benchmark tasks are few
            self._known[task.id] = wanted
        return self._conversation(
            toolbox, offered(type(toolbox)), AtTheEnd(wanted, tables), calls,
            scripted(data, self.patience) if drawn else Messages(["Hello."]),
            world.policy if drawn else self._files.policy,
            (instruction(data) if drawn else brief(data["instruction"], self._endings)) if self.user == "agent" else "",
        )  # fmt: skip

    @property
    def _toolbox(self) -> type[Toolbox]:
        if self.data and self.data.format == "tau2" and self.world == "retail":
            return RetailTau2
        return WORLDS[self.world].toolbox

    @property
    def _endings(self) -> tuple[str, ...]:
        return ENDINGS.get(self.data.format if self.data else "", (STOP,))

    def script(self, skill: float = 1.0) -> Script | None:
        """Return the scripted policy for planner, agent, solver and user; None for benchmark tasks."""
        return None if self.data else script(skill)

    def _of_classes(self, task: Task) -> Conversation:
        data, policy = task.data, self._files.policy

        def fresh() -> Simulated:
            return made_of(self.offers, data)

        made = fresh()
        if task.id not in self._turns:
            self._turns[task.id] = expected_turns(fresh, data["turns"])
        tools = tools_of(made)
        made.hold_back(data["held_back"])
        first = tools_of(made)
        if len(first) < len(offered(self.offers)):  # agents need the list if some tools are missing
            policy = f"{policy}\n\nYour tools here, and no others: {', '.join(first)}.".strip()
        return self._conversation(
            made, tools, ByTurn(self._turns[task.id], made), calls_of(data), Messages(data["messages"]), policy, ""
        )

    def _conversation(
        self, toolbox: Any, tools: Sequence[str], checker: Checker, calls: Calls, user: User, policy: str, told: str,
    ) -> Conversation:  # fmt: skip
        return Conversation(
            toolbox, tools, checker, user,
            rules=dict.fromkeys(self.policy, policy) if policy else {},
            most=self.turns, reference=[call[0] for call in calls], whole=self.reward == "whole",
            asks=self.confirmation and not self.data, brief=told,
            endings=self._endings, last=LAST.get(self.data.format, ()) if self.data else (),
        )  # fmt: skip

    @cached_property
    def _known(self) -> dict[str, Expected]:
        return {}

    @cached_property
    def _turns(self) -> dict[str, list[Turn | None]]:
        return {}

    @cached_property
    def _files(self) -> Loaded:
        assert self.data, "tasks are drawn"
        found = load(self.data.format, self.data.tasks, self.data.database, self.data.answers, self.data.policy)
        if self.data.format != "bfcl":
            check_records(found.tables, TABLES.get(self.world, ()), self.world, self.data.database)
        self._check_calls(found.tasks)
        return found

    def _check_calls(self, tasks: Iterable[Task]) -> None:
        """Check that each reference call names an existing tool. The grader would ignore calls to unknown tools.

        Raises:
            ValueError: a tool or class does not exist.
        """
        assert self.data, "tasks are drawn"
        known, own = offered(self.offers), self.data.format == "bfcl"
        whose = "the classes" if own else f"the world {self.world!r}"
        how = "name the class that has it (environment.data.classes)" if own else "name the world that it is of"
        for task in tasks:
            missing = [name for name in task.data.get("classes", []) if name not in self.data.classes]
            if missing:
                raise ValueError(
                    f"environment.data: task {task.id!r} involves the class {missing[0]!r}"
                    f"{did_you_mean(missing[0], self.data.classes)}; name where it is (environment.data.classes), or "
                    "leave the task out"
                )
            for name, _ in calls_of(task.data):
                if name not in known and (own or not name.startswith(READING)):
                    raise ValueError(
                        f"environment.data: task {task.id!r} calls {name!r}, which is no tool of {whose}"
                        f"{did_you_mean(name, known)}; {how}, or leave the task out"
                    )

    @cached_property
    def _loaded(self) -> dict[Split, list[Task]]:
        assert self.data, "tasks are drawn"
        found: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        official = tau2_splits(self.data.splits) if self.data.splits else {}
        if official:
            tasks = self._files.tasks
            found["test"] = [task for task in tasks if official.get(task.id) == "test"]
            others = without([task for task in tasks if official.get(task.id) == "train"], found["test"])
            for task in others:
                found[share_of(task.prompt, 0.1, 0.0)].append(task)
            return {**found, "train": without(found["train"], found["validation"])}
        for task in self._files.tasks:
            found[share_of(task.prompt, 0.1, 0.0 if self.data.test_tasks else 0.1)].append(task)
        found["validation"] = without(found["validation"], found["test"])
        found["train"] = without(found["train"], [*found["validation"], *found["test"]])
        if self.data.test_tasks:
            test = load(self.data.format, self.data.test_tasks, "", self.data.answers, "", tables=False)
            self._check_calls(test.tasks)
            found = {split: without(tasks, test.tasks) for split, tasks in found.items()}
            found["test"] = [replace(task, id=f"test/{task.id}") for task in test.tasks]
            if not found["train"]:
                raise ValueError(
                    f"environment.data.test_tasks: what is asked in {self.data.tasks} is asked in "
                    f"{self.data.test_tasks} too, and nothing is left to train on; give other tasks, or leave it out"
                )
        return found
