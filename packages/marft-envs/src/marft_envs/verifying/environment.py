"""The plugin ``verifiers``: environments of Prime Intellect's package, in a Python environment of their own."""

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

NUMBERS = count()  # of episodes in this process


class Verifiers(ApartPart):
    """An environment of ``verifiers``, which runs on a Python of its own: it wants other versions of libraries. Its
    rollout asks the team where it asks a model, in as many turns as it has, and its rubric scores what comes of it."""

    installs: ClassVar[str] = (
        "python -m venv ~/verifiers && ~/verifiers/bin/pip install verifiers  and what the environment is in, then "
        'python = "~/verifiers/bin/python"'
    )

    id: Filled  # as load_environment takes it, or of a task set
    args: Plain = {}  # that it is loaded with
    shows: Literal["new", "all"] = "new"  # of later turns: what is new, or the whole conversation
    limit: CountOrNone = 0  # tasks of each split; 0: all
    solved_from: Bounded = 1.0  # the reward from which on a task is solved

    @cached_property
    def _apart(self) -> Apart:
        return Apart(
            "verifiers", at_home(self.python), {"name": self.id, "args": filled(self.args)}, self.timeout_seconds
        )

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        """Its own held-out rows are the test; without them, and for validation, what a row asks decides."""
        rows, seen = self._rows, set[str]()
        own = any(held_out for held_out, _, _ in rows)
        alike = len({told(row["messages"]) for _, _, row in rows}) == 1  # all begin alike: what is asked is not shown
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
        """All rows, held-out ones first: whether each is one, its number among its like, and what it says."""
        running, found = self._apart.current(), list[tuple[bool, int, Mapping[str, Any]]]()
        for held_out in (True, False):
            rows = running.ask({"do": "rows", "held_out": held_out}, self.timeout_seconds).get("rows")
            if not isinstance(rows, list):
                raise EnvironmentApartError(f"verifiers gave {rows!r:.100}, which are no rows")
            found += [(held_out, index, row) for index, row in enumerate(rows)]
        return found

    def tasks(self, split: Split) -> Sequence[Task]:
        """Rows of a split; no prompt is in two, unless all have the same."""
        try:
            return self._splits[split]
        except EnvironmentApartError as error:
            raise ValueError(f"environment.id: {self.id!r} on {self.python}: {error}") from error

    def start(self, task: Task, seed: int) -> Rollout:  # noqa: ARG002  nothing here is random
        """A rollout."""
        return Rollout(self, self._apart, task)


class Rollout:
    """One rollout of an environment, from the side of the team."""

    def __init__(self, settings: Verifiers, apart: Apart, task: Task) -> None:
        self.settings, self.apart, self.task = settings, apart, task
        self.key = f"{next(NUMBERS)}"
        self._running: Any = None
        self._known = 0  # messages that were shown before
        self._done: Mapping[str, Any] | None = None

    async def reset(self) -> Observation:
        self._running = self.apart.current()
        data = self.task.data
        shown = await self._ask({"do": "begin", "held_out": data["held_out"], "row": data["row"]})
        if "done" in shown:
            raise EnvironmentApartError("verifiers: the rollout was over before the team was asked")
        return self._observed(shown)

    async def step(self, actions: JointAction) -> Step:
        """Give the rollout what the team says, where it waits for its model."""
        said = actions.answer  # whose thoughts the package's own parsers look for
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
        self._known = len(messages) + 1  # what the team says next is one of them
        tools = "\n".join(map(described, shown.get("tools") or ()))
        text = told(new)
        return Observation(f"{text}\n\n{TOOLS.format(tools)}" if tools and first else text)
