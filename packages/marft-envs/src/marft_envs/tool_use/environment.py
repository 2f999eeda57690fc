"""Multi-turn tasks with tools over a database, a simulated user, and a checker of the final database.

In a session the team acts and uses tools, and the user replies until the user ends the conversation.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from marft.common.errors import UserError
from marft.common.texts import MAX_ERROR_LENGTH, single_line, truncate
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Split
from marft.config.paths import AbsolutePath
from marft.config.plugins import import_object
from marft.config.settings import Fraction, Names, Settings, did_you_mean
from marft.envs.scripted_policy import ScriptedPolicy
from marft.envs.splits import assign_split_by_share
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft_envs.tool_use.airline_goals import AIRLINE
from marft_envs.tool_use.benchmarks import (
    Benchmark,
    Format,
    check_records,
    drop_overlapping,
    load_benchmark,
    read_tau2_splits,
    reference_calls,
)
from marft_envs.tool_use.checkers import (
    Checker,
    ExpectedOutcome,
    ExpectedTurn,
    FinalStateChecker,
    TaskProgress,
    TurnChecker,
    compute_expected,
    compute_expected_turns,
)
from marft_envs.tool_use.class_toolbox import ClassToolbox, build_toolbox_class, create_toolbox, task_tool_names
from marft_envs.tool_use.goals import Calls, Goal, ServiceWorld, generate_task_data
from marft_envs.tool_use.retail import RetailTau2
from marft_envs.tool_use.retail_goals import RETAIL
from marft_envs.tool_use.script import make_script
from marft_envs.tool_use.shop import SHOP
from marft_envs.tool_use.toolbox import (
    EpisodeTables,
    RecordedCall,
    Toolbox,
    ToolCallRecorder,
    tool_names,
    write_tool_names,
)
from marft_envs.tool_use.users import (
    DEFAULT_PATIENCE,
    OUT_OF_SCOPE,
    STOP,
    TRANSFER,
    USER,
    FixedMessagesUser,
    User,
    generated_user_prompt,
    make_scripted_user,
    user_prompt,
)


def _check_class(path: str, info: ValidationInfo) -> str:
    cls = import_object(path, info.context)
    if not isinstance(cls, type):
        raise UserError(f"{path!r} is no class")
    try:
        inspect.signature(cls).bind()
    except (TypeError, ValueError) as error:
        raise UserError(f"an object of {path!r} is made without arguments, but: {error}") from error
    return path


WORLDS: Mapping[str, ServiceWorld] = {"shop": SHOP, "retail": RETAIL, "airline": AIRLINE}
ClassPath = Annotated[str, AfterValidator(_check_class)]
TABLES = {"retail": ("users", "orders", "products"), "airline": ("users", "flights", "reservations")}
READ_PREFIXES = ("find_", "get_", "list_", "search_")  # name prefixes of the benchmarks' read-only tools
# markers with which a user ends a conversation, by format; STOP alone for other formats
END_MARKERS: Mapping[str, tuple[str, ...]] = {"tau2": (STOP, TRANSFER, OUT_OF_SCOPE)}
ENDING_TOOLS: Mapping[str, tuple[str, ...]] = {"tau": ("transfer_to_human_agents",)}  # tools that end a conversation
REQUIRED_FILES: Mapping[Format, tuple[str, ...]] = {
    "tau": ("database",),
    "tau2": ("database",),
    "bfcl": ("answers", "classes"),
}


class Data(Settings):
    """Public benchmark tasks from files."""

    format: Format = Field(
        description="tau: τ-bench; tau2: τ²-bench; bfcl: multi-turn tasks of the Berkeley function-calling leaderboard"
    )
    tasks: AbsolutePath = Field(description="task file")
    splits: AbsolutePath = Field(
        default="",
        description=(
            "split_tasks.json of τ²-bench: its test list is the test split, a tenth of its train list the validation "
            "split; default: none"
        ),
    )
    test_tasks: AbsolutePath = Field(
        default="",
        description=(
            "task file of the test split; default: a tenth of the tasks for test, and another tenth for validation"
        ),
    )
    database: AbsolutePath = Field(
        default="", description="folder with the tables of a τ-bench domain, or db.json of τ²-bench"
    )
    answers: AbsolutePath = Field(default="", description="possible_answer file; bfcl only")
    rules: AbsolutePath = Field(default="", description="file with the rules shown to agents; default: no rules")
    classes: dict[str, ClassPath] = Field(
        default={}, description="import path of each involved class, as my_package.module:Class; bfcl only"
    )

    @model_validator(mode="after")
    def _check_complete(self) -> Data:
        missing = [key for key in REQUIRED_FILES[self.format] if not getattr(self, key)]
        if missing:
            words = {"format": self.format, "missing": " and ".join(missing)}
            raise PydanticCustomError("data", "format {format!r} needs {missing} too", words)
        if self.splits and (self.format != "tau2" or self.test_tasks):
            raise PydanticCustomError("data", "splits are of format 'tau2' alone, without test_tasks; leave one out")
        if self.classes:
            build_toolbox_class(self.classes)
        return self


class ToolUse(GeneratedEnvironment):
    """Service with tools over a database, a user with requests, and a checker.

    A step is one turn. The team acts with its tools, and its answer goes to the user. The user's reply is in the next
    observation. The episode ends when the user ends the conversation.
    """

    stream: ClassVar[str] = "ToolUse"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    world: Literal["shop", "retail", "airline"] = Field(
        default="shop", description="world of the generated tasks; shop: retail with three tools and short texts"
    )
    goals: Annotated[int, Field(ge=1, le=4)] = Field(
        default=1, description="number of requests per user; each needs several calls"
    )
    volunteer_probability: Fraction = Field(
        default=0.5, description="probability that the user states a fact without being asked"
    )
    joint_goal_probability: Fraction = Field(
        default=0.5, description="probability that a goal is stated together with the previous goal"
    )
    user: Literal["scripted", "agent"] = Field(
        default="scripted",
        description="scripted: rule-based user; agent: agent with role user, last in the organization",
    )
    patience: Annotated[int, Field(ge=0, le=100)] = Field(
        default=DEFAULT_PATIENCE,
        description="maximum number of repeated requests by a scripted user, before the user gives up",
    )
    max_turns: Annotated[int, Field(ge=1, le=200)] = Field(
        default=20, description="maximum user turns; then the episode is truncated"
    )
    require_confirmation: bool = Field(default=True, description="refuse writes by tools before the user agrees")
    reward: Literal["all", "fraction"] = Field(
        default="all",
        description=(
            "all: 1 for a solved task, else 0; fraction: share of completed writes and outputs, 0 after another change"
        ),
    )
    rules_for: Names = Field(
        default=("planner", "agent", "solver"), description="roles that see the rules in their first observation"
    )
    data: Data | None = Field(default=None, description="public benchmark tasks instead of generated tasks")

    @property
    def max_episode_steps(self) -> int:
        """Return the maximum steps per episode: one per user turn."""
        return self.max_turns

    @property
    def tool_class(self) -> type[Any]:
        """Return the class with the tool methods."""
        if self.data and self.data.format == "bfcl":
            return build_toolbox_class(self.data.classes)
        return self._toolbox_class

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield conflicts between the user, the roles and the data.

        An agent that plays the user must exist and come last. A scripted user needs a team without that role.
        """
        if self.user == "agent" and (not roles or roles[-1] != USER):
            yield f"environment.user: it needs an agent whose role is {USER!r}, named last; add it, or take 'scripted'"
        if self.user == "scripted" and USER in roles:
            yield f"environment.user: it is scripted, and an agent's role is {USER!r}; rename it, or take 'agent'"
        informed_roles = self.rules_for if not self.data or self.data.rules else ()
        if informed_roles and roles and not set(informed_roles) & set(roles):
            yield "environment.rules_for: none of these is in the team; name who is shown the rules, or nobody: []"
        if self.data and self.data.format == "bfcl" and self.user == "agent":
            yield "environment.user: these tasks have all that a user says; take 'scripted'"
        if self.data and self.data.format != "bfcl" and self.world == "shop":
            yield "environment.world: these tasks are of 'retail' or 'airline'; name which"
        if self.data and self.user == "scripted" and self.data.format != "bfcl":
            yield "environment.user: these tasks tell a user in words what it wants; take 'agent', and one to play it"

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a task."""
        data = generate_task_data(
            random, WORLDS[self.world], self.goals, self.volunteer_probability, self.joint_goal_probability
        )
        goal_contents = [[goal["aim"], goal["says"], goal["writes"], goal["outputs"]] for goal in data["goals"]]
        content = json.dumps([self.world, data["identity"]["says"], data["batches"], goal_contents])
        return GeneratedTask(content, " ".join(goal["says"] for goal in data["goals"]), data)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks for a split, generated or from files."""
        return self._tasks_by_split[split] if self.data else super().tasks(split)

    def start(self, task: Task, seed: int) -> ToolUseSession:  # noqa: ARG002  nothing here is random
        """Create a session."""
        if self.data and self.data.format == "bfcl":
            return self._start_bfcl(task)
        world, data = WORLDS[self.world], task.data
        is_generated = "goals" in data
        database = world.generate_tables(data["database"]) if is_generated else self._benchmark.tables

        def create_toolbox() -> Toolbox:
            return self._toolbox_class(EpisodeTables(database), strict=is_generated)

        goals = [Goal(**goal) for goal in data["goals"]] if is_generated else []
        calls = [call for goal in goals for call in [*goal.reads, *goal.writes]] if is_generated else data["calls"]
        outputs = [output for goal in goals for output in goal.outputs] if is_generated else data["outputs"]
        toolbox = create_toolbox()
        expected_outcome = self._expected_cache.get(task.id) or compute_expected(create_toolbox, calls, outputs)
        if self.data:  # cached: benchmark states are large, and benchmark tasks are few
            self._expected_cache[task.id] = expected_outcome
        prompt = generated_user_prompt(data) if is_generated else user_prompt(data["instruction"], self.end_markers)
        conversation = Conversation(
            toolbox,
            tool_names(type(toolbox)),
            FinalStateChecker(expected_outcome, toolbox.tables),
            make_scripted_user(data, self.patience) if is_generated else FixedMessagesUser(["Hello."]),
            calls,
            world.policy if is_generated else self._benchmark.policy,
            prompt if self.user == "agent" else "",
        )
        return ToolUseSession(self, conversation)

    @property
    def _toolbox_class(self) -> type[Toolbox]:
        if self.data and self.data.format == "tau2" and self.world == "retail":
            return RetailTau2
        return WORLDS[self.world].toolbox

    @property
    def end_markers(self) -> tuple[str, ...]:
        """Markers with which the user ends the conversation."""
        return END_MARKERS.get(self.data.format if self.data else "", (STOP,))

    @property
    def ending_tools(self) -> tuple[str, ...]:
        """Names of tools that end the conversation at once; the team's message in that turn is not delivered."""
        return ENDING_TOOLS.get(self.data.format, ()) if self.data else ()

    def script(self, skill: float = 1.0) -> ScriptedPolicy | None:
        """Return the scripted policy for planner, agent, solver and user; None for benchmark tasks."""
        return None if self.data else make_script(skill)

    def _start_bfcl(self, task: Task) -> ToolUseSession:
        data, policy = task.data, self._benchmark.policy

        def make_toolbox() -> ClassToolbox:
            return create_toolbox(self.tool_class, data)

        toolbox = make_toolbox()
        if task.id not in self._turns_cache:
            self._turns_cache[task.id] = compute_expected_turns(make_toolbox, data["turns"])
        tools = task_tool_names(toolbox)
        toolbox.withhold(data["held_back"])
        first = task_tool_names(toolbox)
        if len(first) < len(tool_names(self.tool_class)):  # agents need the list if some tools are missing
            policy = f"{policy}\n\nYour tools here, and no others: {', '.join(first)}.".strip()
        checker, user = TurnChecker(self._turns_cache[task.id], toolbox), FixedMessagesUser(data["messages"])
        return ToolUseSession(self, Conversation(toolbox, tools, checker, user, reference_calls(data), policy))

    @cached_property
    def _expected_cache(self) -> dict[str, ExpectedOutcome]:
        return {}

    @cached_property
    def _turns_cache(self) -> dict[str, list[ExpectedTurn | None]]:
        return {}

    @cached_property
    def _benchmark(self) -> Benchmark:
        assert self.data, "tasks are drawn"
        benchmark = load_benchmark(
            self.data.format, self.data.tasks, self.data.database, self.data.answers, self.data.rules
        )
        if self.data.format != "bfcl":
            check_records(benchmark.tables, TABLES.get(self.world, ()), self.world, self.data.database)
        self._check_calls(benchmark.tasks)
        return benchmark

    def _check_calls(self, tasks: Iterable[Task]) -> None:
        """Check that each reference call names an existing tool. The grader would ignore calls to unknown tools.

        Raises:
            UserError: a tool or class does not exist.
        """
        assert self.data, "tasks are drawn"
        known_tools, is_bfcl = tool_names(self.tool_class), self.data.format == "bfcl"
        tool_source = "the classes" if is_bfcl else f"the world {self.world!r}"
        remedy = "name the class that has it (environment.data.classes)" if is_bfcl else "name the world that it is of"
        for task in tasks:
            missing = [name for name in task.data.get("classes", []) if name not in self.data.classes]
            if missing:
                raise UserError(
                    f"environment.data: task {task.id!r} involves the class {missing[0]!r}"
                    f"{did_you_mean(missing[0], self.data.classes)}; name where it is (environment.data.classes), or "
                    "leave the task out"
                )
            for name, _ in reference_calls(task.data):
                if name not in known_tools and (is_bfcl or not name.startswith(READ_PREFIXES)):
                    raise UserError(
                        f"environment.data: task {task.id!r} calls {name!r}, which is no tool of {tool_source}"
                        f"{did_you_mean(name, known_tools)}; {remedy}, or leave the task out"
                    )

    @cached_property
    def _tasks_by_split(self) -> dict[Split, list[Task]]:
        assert self.data, "tasks are drawn"
        tasks_by_split: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        official = read_tau2_splits(self.data.splits) if self.data.splits else {}
        if official:
            tasks = self._benchmark.tasks
            tasks_by_split["test"] = [task for task in tasks if official.get(task.id) == "test"]
            training = drop_overlapping(
                [task for task in tasks if official.get(task.id) == "train"], tasks_by_split["test"]
            )
            for task in training:
                tasks_by_split[assign_split_by_share(task.prompt, 0.1, 0.0)].append(task)
            return {**tasks_by_split, "train": drop_overlapping(tasks_by_split["train"], tasks_by_split["validation"])}
        for task in self._benchmark.tasks:
            tasks_by_split[assign_split_by_share(task.prompt, 0.1, 0.0 if self.data.test_tasks else 0.1)].append(task)
        tasks_by_split["validation"] = drop_overlapping(tasks_by_split["validation"], tasks_by_split["test"])
        tasks_by_split["train"] = drop_overlapping(
            tasks_by_split["train"], [*tasks_by_split["validation"], *tasks_by_split["test"]]
        )
        if self.data.test_tasks:
            test = load_benchmark(self.data.format, self.data.test_tasks, "", self.data.answers, "", tables=False)
            self._check_calls(test.tasks)
            tasks_by_split = {split: drop_overlapping(tasks, test.tasks) for split, tasks in tasks_by_split.items()}
            tasks_by_split["test"] = [replace(task, id=f"test/{task.id}") for task in test.tasks]
            if not tasks_by_split["train"]:
                raise UserError(
                    f"environment.data.test_tasks: what is asked in {self.data.tasks} is asked in "
                    f"{self.data.test_tasks} too, and nothing is left to train on; give other tasks, or leave it out"
                )
        return tasks_by_split


CONFIRM_WORDS = {"yes", "confirm", "confirmed", "agree", "agreed", "ok", "okay", "sure"}
REFUSE_WORDS = {"no", "not", "don't", "never", "wait"}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Parts of a conversation.

    Args:
        toolbox: object whose methods are the tools.
        tools: names of the task's tools.
        checker: checker of the conversation.
        user: simulated user.
        calls: reference calls.
        policy: rules shown to agents; "" for none.
        user_prompt: prompt of the agent that plays the user; "" for a simulated user.
    """

    toolbox: Toolbox | ClassToolbox
    tools: Sequence[str]
    checker: Checker
    user: User
    calls: Calls
    policy: str
    user_prompt: str = ""


class ToolUseSession:
    """Single attempt at a task: the team acts and uses tools, and the user replies until the user ends it."""

    def __init__(self, settings: ToolUse, conversation: Conversation) -> None:
        self.settings, self.conversation = settings, conversation
        self.checker, self.user, self.tool_object = conversation.checker, conversation.user, conversation.toolbox
        needs_confirmation = settings.require_confirmation and not settings.data
        self.toolbox = ToolCallRecorder(
            self.tool_object, lambda: self.confirmed or not needs_confirmation, settings.ending_tools
        )
        self.confirmed = self.user.confirmed and not conversation.user_prompt
        self.turns, self.last_progress = 0, 0.0
        self.write_tools = write_tool_names(type(self.tool_object))
        self._reported_calls = 0  # calls already reported

    async def reset(self) -> Observation:
        """Return the user's first message, with the rules or the user's prompt for their roles."""
        policy, user_prompt = self.conversation.policy, self.conversation.user_prompt
        views = dict.fromkeys(self.settings.rules_for, policy) if policy else {}
        views |= {USER: user_prompt} if user_prompt else {}
        return Observation(f"User: {single_line(self.user.first_message())}", views)

    async def step(self, actions: JointAction) -> Step:
        """Deliver the team's message to the user, after its tool calls."""
        right_tools = self._right_tools()
        message = "" if self.toolbox.ended else _answer_text(actions)
        self.turns += 1
        answer = STOP if self.toolbox.ended else self._user_answer(actions, message)
        is_over, at_limit = (
            any(ending in answer for ending in self.settings.end_markers),
            self.turns >= self.settings.max_turns,
        )
        verdict = self.checker.check_turn(message)
        solved = is_over and self.user.is_satisfied and verdict.is_solved
        observation = Observation(f"User: {shorten_message(answer)}", self._agent_reports(actions, message))
        return Step(
            observation,
            self._reward(verdict, is_over or at_limit, solved),
            terminated=is_over,
            truncated=at_limit and not is_over,
            success=solved if is_over or at_limit else None,
            info={
                "progress": verdict.completed,
                "right_tools": right_tools,
                "allowed_tools": self._allowed_tools(actions),
                "measures": self._metrics(),
            },
        )

    async def close(self) -> None:
        """No-op: the session holds no resources."""

    def _user_answer(self, actions: JointAction, message: str) -> str:
        if not self.conversation.user_prompt:
            answer = self.user.reply(message)
            self.confirmed = self.user.confirmed
            return answer
        user_action = actions.for_role(USER)
        answer = user_action.text.strip() if user_action else ""
        self.confirmed = is_confirmation(answer)
        return answer

    def _reward(self, verdict: TaskProgress, at_end: bool, solved: bool) -> float:
        """Return the reward for a step.

        With ``reward = "all"``, the reward is 1 at the end of a solved task. Else it is the step's increase in the
        completed fraction. If a wrong change was made and the task ends unsolved, the last step takes the total back.
        """
        if self.settings.reward == "all":
            return float(solved)
        increase, self.last_progress = verdict.completed - self.last_progress, verdict.completed
        return increase - verdict.completed if at_end and not solved and verdict.has_wrong_change else increase

    def _right_tools(self) -> list[str]:
        """Return the tools in the reference: readers, and writers after the user's agreement."""
        names = {call[0] for call in self.conversation.calls}
        return sorted(name for name in names if name not in self.write_tools or self.confirmed)

    def _allowed_tools(self, actions: JointAction) -> dict[str, list[str]]:
        """Return the allowed tools by agent: every tool for the agent that answers the user, none for the rest."""
        answering_agent = actions.answer.agent if actions.answer else ""
        return {
            action.agent: list(self.conversation.tools) if action.agent == answering_agent else []
            for action in actions.actions
        }

    def _metrics(self) -> dict[str, float]:
        return {
            "user_turns": float(self.turns),
            "tool_calls": float(len(self.toolbox.calls)),
            "policy_violations": float(len(self.tool_object.violations) + self.toolbox.unconfirmed_writes),
        }

    def _agent_reports(self, actions: JointAction, message: str) -> dict[str, str]:
        """Return a report with calls and message, for agents that did not answer the user."""
        calls, self._reported_calls = self.toolbox.calls[self._reported_calls :], len(self.toolbox.calls)
        answering_agent = actions.answer.agent if actions.answer else ""
        report = "\n".join([*map(_format_call, calls), f"Agent: {shorten_message(message)}"])
        return {action.agent: report for action in actions.actions if action.agent not in (answering_agent, USER)}


def shorten_message(text: str) -> str:
    """Return a message on a single line, shortened to a maximum length."""
    return truncate(single_line(text), MAX_ERROR_LENGTH)


def is_confirmation(text: str) -> bool:
    """Return True if a user's message expresses agreement."""
    words = set(re.findall(r"[\w']+", text.lower()))
    return bool(CONFIRM_WORDS & words) and not REFUSE_WORDS & words


def _answer_text(actions: JointAction) -> str:
    return actions.answer.message.strip() if actions.answer and actions.answer.agent != USER else ""


def _format_call(call: RecordedCall) -> str:
    values = ", ".join(map(str, call.arguments.values()))
    return shorten_message(f"{call.name}({values}){f': {call.error}' if call.error else ''}")
