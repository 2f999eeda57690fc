"""Plugins that fit no seam, or not the one that they are given to."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import model_validator

from marft.config.plugins import Plugin
from marft.learning.credit.estimator import Estimator
from marft.learning.interfaces import CreditInputs, Credits
from marft.types import JointAction, Task


class NotAwaited(Plugin):
    """An organization whose ``act`` is no coroutine."""

    def act(self, observation: Any, agents: Any) -> JointAction:
        return JointAction()


class TooFew(Plugin):
    """An organization that is not told who acts."""

    async def act(self, observation: Any) -> JointAction:
        return JointAction()


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*arguments: Any) -> Any:
        return function(*arguments)

    return wrapper


class Decorated(Plugin):
    """An organization that is fine: its coroutine is wrapped."""

    @logged
    async def act(self, observation: Any, agents: Any) -> JointAction:
        return JointAction()


class AwaitedTasks(Plugin):
    """An environment whose tasks would never arrive."""

    async def tasks(self, split: str) -> list[Task]:
        return []

    def start(self, task: Task, seed: int) -> Any:
        return None


class Streaming(Plugin):
    """An environment whose tasks would come one by one, to nobody."""

    async def tasks(self, split: str) -> Any:
        yield Task("a", "?")

    def start(self, task: Task, seed: int) -> Any:
        return None


class Abstract(Plugin):
    """A channel that leaves what it is for to those that derive from it."""

    @abc.abstractmethod
    def carry(self, messages: Any) -> Any: ...


class Truthful(Plugin):
    """A schedule whose limit of ratios is a truth value."""

    correction: ClassVar[str] = ""
    ratio_limit: ClassVar[Any] = True

    def plan(self, progress: Any, policies: Any, seed: int) -> Any:
        return []


class Halfway(Estimator):
    """A credit that remembers and cannot be reminded, and compares with something that nobody knows."""

    def assign(self, inputs: CreditInputs) -> Credits:
        return Credits(())

    def state_dict(self) -> dict[str, float]:
        return {}


class Stranger(Estimator):
    grouped_by: ClassVar[Any] = "tasks"

    def assign(self, inputs: CreditInputs) -> Credits:
        return Credits(())


class Silent(Estimator):
    """A credit that forgot what it is for."""


class Raises(Plugin):
    """An organization whose own check fails in an unforeseen way."""

    @model_validator(mode="after")
    def _look_up(self) -> Raises:
        return {}["nowhere"]

    async def act(self, observation: Any, agents: Any) -> JointAction:
        return JointAction()
