"""Plugin ``verifiers``: environments from Prime Intellect's package, on a separate Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any, ClassVar, Literal

from marft.agents.environment import Split
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.keys import filled
from marft.config.settings import Bounded, CountOrNone, Filled, Plain
from marft.envs.splits import bare, split_of
from marft_envs.apart.part import ApartPart, at_home
from marft_envs.apart.process import Apart, EnvironmentApartError, number_in
from marft_envs.apart.words import TOOLS, described, measures, told

NUMBERS = count()  # episode counter of this process


class Verifiers(ApartPart):
    """An environment from ``verifiers``, on a separate Python because it needs other library versions.

    The environment's rollout sends its model requests to the team, over any number of turns. Its rubric scores the
    result.
    """

    installs: ClassVar[str] = (
        "python -m venv ~/verifiers && ~/verifiers/bin/pip install verifiers  and what the environment is in, then "
        'python = "~/verifiers/bin/python"'
    )

    id: Filled  # environment id for load_environment, or the id of a task set
    args: Plain = {}  # arguments for loading the environment
    # messages in observations after the first; new: new messages only; all: the whole conversation
    shows: Literal["new", "all"] = "new"
    limit: CountOrNone = 0  # maximum tasks per split; 0: no limit
    solved_from: Bounded = 1.0  # minimum reward for success

    @cached_property
    def _apart(self) -> Apart:
        return Apart(
            "verifiers", at_home(self.python), {"name": self.id, "args": filled(self.args)}, self.timeout_seconds
        )

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        """Tasks by split.

        The environment's held-out rows are the test split. Without them, and for validation, the content of a row
        decides its split.
        """
        rows, seen = self._rows, set[str]()
        own = any(held_out for held_out, _, _ in rows)
        # all prompts are equal, so the question is not in the prompt
        alike = len({told(row["messages"]) for _, _, row in rows}) == 1
        found: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        for held_out, index, row in rows:
            prompt = told(row["messages"])
            asks = bare(f"{row['answer']} {row['about']}" if alike else prompt)
            if asks in seen:
                continue
            seen.add(asks)
            split: Split = "test" if held_out else split_of(asks)
            if own and not held_out and split == "test":
                split = "train"
            data = {"held_out": held_out, "row": index, "answer": row["answer"]}
            found[split].append(Task(f"{self.id}/{'held_out' if held_out else 'rows'}/{index}", prompt, data))
        return {split: tasks[: self.limit or None] for split, tasks in found.items()}

    @property
    def _rows(self) -> list[tuple[bool, int, Mapping[str, Any]]]:
        """All rows, held-out rows first: held-out flag, index in its list, and content."""
        running, found = self._apart.current(), list[tuple[bool, int, Mapping[str, Any]]]()
        for held_out in (True, False):
            rows = running.ask({"do": "rows", "held_out": held_out}, self.timeout_seconds).get("rows")
            if not isinstance(rows, list):
                raise EnvironmentApartError(f"verifiers gave {rows!r:.100}, which are no rows")
            found += [(held_out, index, row) for index, row in enumerate(rows)]
        return found

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks of a split; no prompt is in two splits, unless all prompts are equal.

        Raises:
            ValueError: the process failed or the environment did not load.
        """
        try:
            return self._splits[split]
        except EnvironmentApartError as error:
            raise ValueError(f"environment.id: {self.id!r} on {self.python}: {error}") from error

    def start(self, task: Task, seed: int) -> Rollout:  # noqa: ARG002  the package has no seed
        """Start a rollout."""
        return Rollout(self, self._apart, task)


class Rollout:
    """Team side of one rollout."""

    def __init__(self, settings: Verifiers, apart: Apart, task: Task) -> None:
        self.settings, self.apart, self.task = settings, apart, task
        self.key = f"{next(NUMBERS)}"
        self._running: Any = None
        self._known = 0  # number of messages already shown
        self._done: Mapping[str, Any] | None = None

    async def reset(self) -> Observation:
        """Start the rollout and return its first request."""
        self._running = self.apart.current()
        data = self.task.data
        shown = await self._ask({"do": "begin", "held_out": data["held_out"], "row": data["row"]})
        if "done" in shown:
            raise EnvironmentApartError("verifiers: the rollout was over before the team was asked")
        return self._observed(shown)

    async def step(self, actions: JointAction) -> Step:
        """Send the team's text to the rollout, as its model's reply."""
        said = actions.answer  # including its reasoning, because the package's own parsers look for it
        text = said.text if said and not said.only_thought else ""
        shown = await self._ask({"do": "say", "text": text})
        if "done" not in shown:
            return Step(self._observed(shown), 0.0)
        done = shown["done"]
        if not isinstance(done, dict):
            raise EnvironmentApartError(f"verifiers gave {done!r:.100}, which is no score")
        reward = number_in(done, "reward")
        return Step(
            Observation(""), reward, terminated=True, success=reward >= self.settings.solved_from,
            info={"measures": measures(done.get("metrics"))},
        )  # fmt: skip

    async def close(self) -> None:
        """Drop the rollout in the process."""
        if self._running is not None:
            self._running.forget({"do": "drop", "episode": self.key})

    async def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = await self._running.asked(
            {**question, "episode": self.key}, self.settings.timeout_seconds
        )
        return answer

    def _observed(self, shown: Mapping[str, Any]) -> Observation:
        messages = shown.get("messages")
        if not isinstance(messages, list):
            raise EnvironmentApartError(f"verifiers gave {messages!r:.100}, which are no messages")
        new = messages[self._known :] if self.settings.shows == "new" else messages
        first = not self._known
        self._known = len(messages) + 1  # counts the team's next message too
        tools = "\n".join(map(described, shown.get("tools") or ()))
        text = told(new)
        return Observation(f"{text}\n\n{TOOLS.format(tools)}" if tools and first else text)
