"""Plugin ``toolsandbox``: Apple's phone-tool scenarios, in a process on a separate Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field

from marft.common.errors import UserError
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Split
from marft.config.settings import Bounded, Names, NonNegativeCount, did_you_mean
from marft.envs.splits import normalize_question, split_small_set
from marft_envs.env_process.process import (
    TOOLS_TEMPLATE,
    EnvProcess,
    EnvProcessError,
    ProcessSession,
    SubprocessEnvironment,
    clean_metrics,
    expand_home,
    format_tool,
)

USER = "user"  # role of the agent that plays the user
END_TEXT = "end_conversation"  # text with which a user ends the conversation, as instructed by the package
ROLE_PREFIXES = {"user": "User: ", "agent": "Agent: ", "execution_environment": "Tool: "}


class ToolSandboxSession(ProcessSession):
    """One scenario.

    Args:
        settings: the environment.
        process: the environment process.
        name: name of the scenario.
        seed: seed of the scenario.
    """

    def __init__(self, settings: ToolSandbox, process: EnvProcess, name: str, seed: int) -> None:
        super().__init__(process, settings.timeout_seconds)
        self.name, self.seed, self.success_threshold = name, seed, settings.success_threshold
        # roles that serve an agent as user; () for a user that leaves after the first message to it
        self.serves = settings.serves if settings.user == "agent" else ()
        self.turn = "agent"
        self._user_prompt = ""
        # by role: the agent's last message to the user, not yet shown to the role
        self._pending_views: dict[str, str] = {}

    async def reset(self) -> Observation:
        """Start the scenario and return the user's request and the available tools."""
        reply = await self.begin_episode(name=self.name, seed=self.seed)
        self._user_prompt = str(reply.get("brief", ""))
        tools = "\n".join(map(format_tool, reply.get("tools") or ()))
        return self._build_observation(reply, TOOLS_TEMPLATE.format(tools) if tools else "")

    async def step(self, actions: JointAction) -> Step:
        """Send the team's calls or message to the process, or the user's message."""
        action = actions.for_role(USER) if self.turn == "user" else actions.answer
        text = action.message if action else ""
        ends = self.turn == "user" and END_TEXT in text
        reply = await self.request("say", speaker=self.turn, text=text, answered=bool(self.serves), ends=ends)
        if "done" in reply:
            return self._final_step(reply["done"])
        if self.turn == "agent" and action:
            other_agents = [item.agent for item in actions.actions if item.agent != action.agent]
            self._pending_views = dict.fromkeys(other_agents, f"Agent: {text}")
        observation = self._build_observation(reply)
        views: dict[str, str] = {}
        if self.turn == "agent":
            views, self._pending_views = self._pending_views, {}
        return Step(Observation(observation.text, views, observation.turn), 0.0)

    def _final_step(self, done: object) -> Step:
        outcome, reward = self.read_outcome(done)
        ended = outcome.get("ended") is True
        return Step(
            Observation(""),
            reward,
            terminated=ended,
            truncated=not ended,
            success=reward >= self.success_threshold,
            info={"measures": clean_metrics(outcome.get("metrics"))},
        )

    def _build_observation(self, reply: Mapping[str, Any], extra: str = "") -> Observation:
        messages, turn = reply.get("messages"), reply.get("turn")
        if not isinstance(messages, list) or turn not in ("agent", "user"):
            raise EnvProcessError(f"toolsandbox gave {messages!r:.100} to {turn!r:.20}, which nobody can read")
        self.turn = turn
        lines = [f"{ROLE_PREFIXES.get(message['role'], '')}{message['content']}" for message in messages]
        if turn == "user" and self._user_prompt:
            lines, self._user_prompt = [self._user_prompt, *lines], ""
        roles = () if not self.serves else (USER,) if turn == "user" else self.serves
        return Observation("\n\n".join(part for part in ("\n".join(lines), extra) if part), turn=roles)


def group_related(marks: Sequence[Sequence[str]]) -> list[str]:
    """Return each task's group: the smallest mark among its related tasks.

    Two tasks are related if they share a mark, or if both are related to a third task.

    Args:
        marks: marks of each task, at least one.

    >>> group_related([["of a", "asks 1"], ["of b", "asks 1"], ["of c", "asks 2"]])
    ['asks 1', 'asks 1', 'asks 2']
    """
    parents: dict[str, str] = {}

    def find_root(mark: str) -> str:
        """Return the root of a mark, with path compression."""
        while (parent := parents.setdefault(mark, mark)) != mark:
            parents[mark] = parents[parent]
            mark = parent
        return mark

    for task_marks in marks:
        roots = [find_root(mark) for mark in task_marks]
        for mark in roots:
            parents[mark] = min(roots)
    return [find_root(task_marks[0]) for task_marks in marks]


MAX_MESSAGES = 30  # maximum messages in a conversation of the package; each step of the team adds at least one
MULTI_TURN_CATEGORY = "multiple_user_turn"  # category of scenarios that need several user messages


class ToolSandbox(SubprocessEnvironment):
    """ToolSandbox scenarios: tools on the state of a phone, a user, and milestones.

    Some tools depend on others. The milestones measure how much of the request was fulfilled. A step is the team's
    text: tool calls, or a message to the user.
    """

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    install_command: ClassVar[str] = (
        "git clone https://github.com/apple/ToolSandbox && python -m venv ~/toolsandbox && "
        '~/toolsandbox/bin/pip install ./ToolSandbox  and then python = "~/toolsandbox/bin/python"'
    )

    user: Literal["leaves", "agent"] = Field(
        default="leaves",
        description=(
            "user; leaves: states everything at the start, and a message to the user ends the conversation; agent: an "
            "agent with role user"
        ),
    )
    serves: Names = Field(default=("agent",), description="roles that serve the user agent, in order of action")
    categories: Names = Field(
        default=(), description="required categories of each scenario, such as state_dependency; []: no condition"
    )
    exclude_categories: Names = Field(default=(), description="excluded categories")
    include_web: bool = Field(
        default=False, description="include scenarios whose tools call RapidAPI, with the key in RAPID_API_KEY"
    )
    limit: NonNegativeCount = Field(default=0, description="maximum scenarios per split; 0: no limit")
    success_threshold: Bounded = Field(default=0.9, description="minimum similarity for success")

    @property
    def controls_turns(self) -> bool:  # type: ignore[override]
        """True if an agent plays the user; the user acts when addressed, and the other agents act otherwise."""
        return self.user == "agent"

    @property
    def max_episode_steps(self) -> int:
        """Maximum steps in an episode: the maximum messages in a conversation."""
        return MAX_MESSAGES

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each missing or superfluous role.

        With an agent as user, the user's role and the serving roles must exist. With a user that leaves, no agent
        may have the user's role.
        """
        if self.user == "leaves" and USER in roles:
            yield f"environment.user: it leaves, and an agent's role is {USER!r}; rename it, or take 'agent'"
        if self.user != "agent":
            return
        if USER not in roles:
            yield f"environment.user: it needs an agent whose role is {USER!r}; add it, or take 'leaves'"
        for role in self.serves:
            if role not in roles or role == USER:
                yield f"environment.serves: {role!r} is nobody who could{did_you_mean(role, roles)}"
        if not self.serves:
            yield "environment.serves: name who serves the user"

    @cached_property
    def _process(self) -> EnvProcess:
        # timeout of one tool call, in seconds: a fraction of the request timeout, because all episodes wait for the
        # call
        settings = {"web": self.include_web, "seconds": self.timeout_seconds / (2 if self.include_web else 8)}
        return EnvProcess("toolsandbox", expand_home(self.python), settings, self.timeout_seconds)

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        """Tasks by split: a fifth of the requests is for test, and a fifth for validation.

        Variations of a scenario stay in one split.
        """
        rows = self._rows
        groups = group_related([_relation_keys(row) for row in rows])
        splits = split_small_set(groups)  # dealt before filtering, so filters do not move scenarios to other splits
        tasks_by_split: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        for row, group in zip(rows, groups, strict=True):
            if self._is_wanted(row):
                data = {"categories": row["categories"], "group": group}
                tasks_by_split[splits[group]].append(Task(row["name"], _first_messages(row), data))
        return {split: tasks[: self.limit or None] for split, tasks in tasks_by_split.items()}

    @property
    def _rows(self) -> list[Mapping[str, Any]]:
        rows = self._process.get_running().request({"do": "rows"}, self.timeout_seconds).get("rows")
        if not isinstance(rows, list) or not rows:
            raise EnvProcessError(f"toolsandbox gave {rows!r:.100}, which are no scenarios")
        known_categories = {category for row in rows for category in row["categories"]}
        for category in (*self.categories, *self.exclude_categories):
            if category not in known_categories:
                raise UserError(
                    f"environment: no scenario is in category {category!r}{did_you_mean(category, known_categories)}"
                )
        return rows

    def _is_wanted(self, row: Mapping[str, Any]) -> bool:
        categories = set(row["categories"])
        if (row["web"] and not self.include_web) or (self.user == "leaves" and MULTI_TURN_CATEGORY in categories):
            return False
        return categories >= set(self.categories) and not categories & set(self.exclude_categories)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return a split's scenarios.

        Raises:
            UserError: the process failed, or a category is unknown.
        """
        try:
            return self._splits[split]
        except EnvProcessError as error:
            raise UserError(f"environment: ToolSandbox on {self.python}: {error}") from error

    def start(self, task: Task, seed: int) -> ToolSandboxSession:
        """Start a conversation; ``seed`` decides the ids of added records."""
        return ToolSandboxSession(self, self._process, task.id, seed)


def _first_messages(row: Mapping[str, Any]) -> str:
    return "\n".join(message["content"] for message in row["messages"])


def _relation_keys(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the keys that relate scenarios: their base, their first messages, and the user's goal."""
    return (
        f"of {row['base']}",
        f"asks {normalize_question(_first_messages(row))}",
        f"wants {normalize_question(row['wants'])}",
    )
