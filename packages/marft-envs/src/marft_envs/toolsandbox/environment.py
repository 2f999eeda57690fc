"""The plugin ``toolsandbox``: Apple's scenarios of a phone's tools, in a process on a Python of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Literal

from marft.agents.environment import Split
from marft.common.types import Task
from marft.config.settings import Bounded, CountOrNone, Names, did_you_mean
from marft.envs.splits import bare, dealt
from marft_envs.apart.part import ApartPart, at_home
from marft_envs.apart.process import Apart, EnvironmentApartError
from marft_envs.toolsandbox.related import related
from marft_envs.toolsandbox.session import USER, Talk

MESSAGES = 30  # of a conversation, in the package; each step of a team is at least one
ALONE = "multiple_user_turn"  # the category of what a user who says one thing cannot be served with


class ToolSandbox(ApartPart):
    """Scenarios of ToolSandbox: tools over the state of a phone, some of which need another one first, a user, and
    milestones that say how much of what was asked has come about. A step is what the team says: calls, or words to the
    user."""

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    installs: ClassVar[str] = (
        "git clone https://github.com/apple/ToolSandbox && python -m venv ~/toolsandbox && "
        '~/toolsandbox/bin/pip install ./ToolSandbox  and then python = "~/toolsandbox/bin/python"'
    )

    # leaves: who has said what it wants, and is gone once it is told something; agent: an agent whose role is user
    user: Literal["leaves", "agent"] = "leaves"
    serves: Names = ("agent",)  # roles that serve a user who is an agent, in the order in which they act
    categories: Names = ()  # of the package's, such as state_dependency: scenarios that are in all of these; (): any
    leave_out: Names = ()  # categories whose scenarios are left out
    web: bool = False  # also scenarios whose tools ask RapidAPI, with the key in RAPID_API_KEY
    limit: CountOrNone = 0  # scenarios of each split; 0: all
    solved_from: Bounded = 0.9  # the similarity from which on a scenario counts as solved

    @property
    def says_whose_turn(self) -> bool:  # type: ignore[override]
        """Where an agent plays the user, it acts when it is told something, and the others otherwise."""
        return self.user == "agent"

    @property
    def episode_limit(self) -> int:
        """As many steps as a conversation has messages, at most."""
        return MESSAGES

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """A user who is an agent must be there, as must those who serve it; another one must not."""
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
    def _apart(self) -> Apart:
        given = {"web": self.web, "seconds": self.timeout_seconds / (2 if self.web else 8)}  # all wait for one call
        return Apart("toolsandbox", at_home(self.python), given, self.timeout_seconds)

    @cached_property
    def _splits(self) -> dict[Split, list[Task]]:
        """A fifth of what is asked is the test, and a fifth validates; scenarios that vary one another are together."""
        rows = self._rows
        groups = related([_kin(row) for row in rows])
        splits = dealt(groups)  # whatever of them is wanted
        found: dict[Split, list[Task]] = {"train": [], "validation": [], "test": []}
        for row, group in zip(rows, groups, strict=True):
            if self._is_wanted(row):
                data = {"categories": row["categories"], "group": group}
                found[splits[group]].append(Task(row["name"], _asked(row), data))
        return {split: tasks[: self.limit or None] for split, tasks in found.items()}

    @property
    def _rows(self) -> list[Mapping[str, Any]]:
        rows = self._apart.current().ask({"do": "rows"}, self.timeout_seconds).get("rows")
        if not isinstance(rows, list) or not rows:
            raise EnvironmentApartError(f"toolsandbox gave {rows!r:.100}, which are no scenarios")
        known = {category for row in rows for category in row["categories"]}
        for category in (*self.categories, *self.leave_out):
            if category not in known:
                raise ValueError(f"environment: no scenario is in category {category!r}{did_you_mean(category, known)}")
        return rows

    def _is_wanted(self, row: Mapping[str, Any]) -> bool:
        categories = set(row["categories"])
        if (row["web"] and not self.web) or (self.user == "leaves" and ALONE in categories):
            return False
        return categories >= set(self.categories) and not categories & set(self.leave_out)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Scenarios of a split."""
        try:
            return self._splits[split]
        except EnvironmentApartError as error:
            raise ValueError(f"environment: ToolSandbox on {self.python}: {error}") from error

    def start(self, task: Task, seed: int) -> Talk:
        """A conversation; ``seed`` makes the identifiers of what is added."""
        serves = self.serves if self.user == "agent" else ()
        return Talk(self._apart, task.id, seed, serves, self.solved_from, self.timeout_seconds)


def _asked(row: Mapping[str, Any]) -> str:
    return "\n".join(message["content"] for message in row["messages"])


def _kin(row: Mapping[str, Any]) -> tuple[str, ...]:
    """What makes it one with others: what is varied, how it begins, or what is wanted."""
    return f"of {row['base']}", f"asks {bare(_asked(row))}", f"wants {bare(row['wants'])}"
