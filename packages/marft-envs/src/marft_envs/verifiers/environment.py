"""Plugin ``verifiers``: environments from Prime Intellect's package, on a separate Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

from pydantic import Field

from marft.common.errors import UserError
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Split
from marft.config.secrets import fill_variables
from marft.config.settings import Bounded, NonEmptyString, NonNegativeCount, PlainTable
from marft.envs.splits import assign_split, normalize_question
from marft_envs.env_process.process import (
    TOOLS_TEMPLATE,
    EnvProcess,
    EnvProcessError,
    ProcessSession,
    SubprocessEnvironment,
    clean_metrics,
    expand_home,
    format_messages,
    format_tool,
)


class Verifiers(SubprocessEnvironment):
    """An environment from ``verifiers``, on a separate Python because it needs other library versions.

    The environment's rollout sends its model requests to the team, over any number of turns. Its rubric scores the
    result.
    """

    install_command: ClassVar[str] = (
        "python -m venv ~/verifiers && ~/verifiers/bin/pip install verifiers  and what the environment is in, then "
        'python = "~/verifiers/bin/python"'
    )

    id: NonEmptyString = Field(description="environment id for load_environment, or the id of a task set")
    args: PlainTable = Field(default={}, description="arguments for loading the environment")
    visible: Literal["new", "all"] = Field(
        default="new",
        description="messages in observations after the first: only new messages, or the whole conversation",
    )
    limit: NonNegativeCount = Field(default=0, description="maximum tasks per split; 0: no limit")
    success_threshold: Bounded = Field(default=1.0, description="minimum reward for success")

    @cached_property
    def _process(self) -> EnvProcess:
        return EnvProcess(
            "verifiers",
            expand_home(self.python),
            {"name": self.id, "args": fill_variables(self.args)},
            self.timeout_seconds,
        )

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        """Tasks by split.

        The environment's held-out rows are the test split. Without them, and for validation, the content of a row
        decides its split.
        """
        rows, seen = self._rows, set[str]()
        has_held_out = any(held_out for held_out, _, _ in rows)
        # all prompts are equal, so the question is not in the prompt
        same_prompt = len({format_messages(row["messages"]) for _, _, row in rows}) == 1
        tasks_by_split: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        for held_out, index, row in rows:
            prompt = format_messages(row["messages"])
            question = normalize_question(f"{row['answer']} {row['about']}" if same_prompt else prompt)
            if question in seen:
                continue
            seen.add(question)
            split: Split = "test" if held_out else assign_split(question)
            if has_held_out and not held_out and split == "test":
                split = "train"
            data = {"held_out": held_out, "row": index, "answer": row["answer"]}
            tasks_by_split[split].append(Task(f"{self.id}/{'held_out' if held_out else 'rows'}/{index}", prompt, data))
        return {split: tasks[: self.limit or None] for split, tasks in tasks_by_split.items()}

    @property
    def _rows(self) -> list[tuple[bool, int, Mapping[str, Any]]]:
        """All rows, held-out rows first: held-out flag, index in its list, and content."""
        running, rows_found = self._process.get_running(), list[tuple[bool, int, Mapping[str, Any]]]()
        for held_out in (True, False):
            rows = running.request({"do": "rows", "held_out": held_out}, self.timeout_seconds).get("rows")
            if not isinstance(rows, list):
                raise EnvProcessError(f"verifiers gave {rows!r:.100}, which are no rows")
            rows_found += [(held_out, index, row) for index, row in enumerate(rows)]
        return rows_found

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks of a split; no prompt is in two splits, unless all prompts are equal.

        Raises:
            UserError: the process failed or the environment did not load.
        """
        try:
            return self._splits[split]
        except EnvProcessError as error:
            raise UserError(f"environment.id: {self.id!r} on {self.python}: {error}") from error

    def start(self, task: Task, seed: int) -> VerifiersSession:  # noqa: ARG002  the package has no seed
        """Start a rollout."""
        return VerifiersSession(self, self._process, task)


class VerifiersSession(ProcessSession):
    """Team side of one rollout."""

    def __init__(self, settings: Verifiers, process: EnvProcess, task: Task) -> None:
        super().__init__(process, settings.timeout_seconds)
        self.settings, self.task = settings, task
        self._shown_count = 0  # number of messages already shown

    async def reset(self) -> Observation:
        """Start the rollout and return its first request."""
        data = self.task.data
        reply = await self.begin_episode(held_out=data["held_out"], row=data["row"])
        if "done" in reply:
            raise EnvProcessError("verifiers: the rollout was over before the team was asked")
        return self._build_observation(reply)

    async def step(self, actions: JointAction) -> Step:
        """Send the team's text to the rollout, as its model's reply."""
        action = actions.answer  # including its reasoning, because the package's own parsers look for it
        reply = await self.request("say", text=action.text if action and not action.only_thought else "")
        if "done" not in reply:
            return Step(self._build_observation(reply), 0.0)
        outcome, reward = self.read_outcome(reply["done"])
        return Step(
            Observation(""),
            reward,
            terminated=True,
            success=reward >= self.settings.success_threshold,
            info={"measures": clean_metrics(outcome.get("metrics"))},
        )

    def _build_observation(self, reply: Mapping[str, Any]) -> Observation:
        messages = reply.get("messages")
        if not isinstance(messages, list):
            raise EnvProcessError(f"verifiers gave {messages!r:.100}, which are no messages")
        new = messages[self._shown_count :] if self.settings.visible == "new" else messages
        first = not self._shown_count
        self._shown_count = len(messages) + 1  # counts the team's next message too
        tools = "\n".join(map(format_tool, reply.get("tools") or ()))
        text = format_messages(new)
        return Observation(f"{text}\n\n{TOOLS_TEMPLATE.format(tools)}" if tools and first else text)
