"""Plugins that fit no seam, or not the one that they are given to."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import model_validator

from marft.common.types import JointAction, Task
from marft.config.interfaces.channel import Channel
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.config.interfaces.environment import Environment
from marft.config.interfaces.organization import Organization
from marft.config.interfaces.schedule import UpdateSchedule
from marft.config.plugins import Plugin


class NotAwaited(Organization):
    """An organization whose ``act`` is no coroutine."""

    def act(self, observation: Any, agents: Any) -> JointAction:
        return JointAction()


class TooFew(Organization):
    """An organization that is not told who acts."""

    async def act(self, observation: Any) -> JointAction:
        return JointAction()


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


class Decorated(Organization):
    """An organization that is fine: its coroutine is wrapped."""

    @logged
    async def act(self, observation: Any, agents: Any) -> JointAction:
        return JointAction()


class AwaitedTasks(Environment):
    """An environment whose tasks would never arrive."""

    async def tasks(self, split: str) -> list[Task]:
        return []

    def start(self, task: Task, seed: int) -> Any:
        return None


class Streaming(Environment):
    """An environment whose tasks would come one by one, to nobody."""

    async def tasks(self, split: str) -> Any:
        yield Task("a", "?")

    def start(self, task: Task, seed: int) -> Any:
        return None


class Abstract(Channel):
    """A channel that leaves what it is for to those that derive from it."""

    @abc.abstractmethod
    def transform(self, messages: Any) -> Any: ...


class Truthful(UpdateSchedule):
    """A schedule whose limit of ratios is a truth value."""

    correction: ClassVar[str] = ""
    ratio_limit: ClassVar[Any] = True

    def plan_phases(self, progress: Any, policies: Any, seed: int) -> Any:
        return []


class Halfway(Credit):
    """A credit that remembers and cannot be reminded, and compares with something that nobody knows."""

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        return CreditOutput(())

    def state_dict(self) -> dict[str, float]:
        return {}


class Stranger(Credit):
    comparison_group: ClassVar[Any] = "tasks"

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        return CreditOutput(())


class Silent(Credit):
    """A credit that forgot what it is for."""


class Raises(Organization):
    """An organization whose own check fails in an unforeseen way."""

    @model_validator(mode="after")
    def _look_up(self) -> Raises:
        return {}["nowhere"]

    async def act(self, observation: Any, agents: Any) -> JointAction:
        return JointAction()


class Misspelt(Credit):
    """A credit that would go without the critic that it asks for."""

    needs_crtic: ClassVar[bool] = True

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        return CreditOutput(())


class Overlooked(Credit):
    """A credit whose episodes would not be played again."""

    @property
    def fork_pln(self) -> Any:
        return None

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        return CreditOutput(())


class Baseless(Plugin):
    """An organization that says nothing of what all organizations say."""

    async def act(self, observation: Any, agents: Any) -> JointAction:
        return JointAction()
