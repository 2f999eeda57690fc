"""Third-party environments: their creation with clear errors, and tasks that are seeds for them.

Splits have disjoint seed ranges or disjoint first observations.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.util import find_spec
from itertools import count
from types import ModuleType
from typing import Annotated, Any, Literal

from pydantic import Field, Strict

from marft.common.error_origin import describe_error
from marft.common.errors import UserError
from marft.common.packages import install_command
from marft.common.types import Task
from marft.common.user_modules import import_user_module
from marft.config.interfaces.environment import Environment, Split
from marft.config.plugins import import_object, import_path_module
from marft.config.secrets import fill_variables, mask_values, variable_values
from marft.config.settings import Bounded, Names, NonEmptyString, PlainTable, SmallCount
from marft.envs.splits import assign_split, fill_splits


def make_gymnasium_env(game: str, kwargs: Mapping[str, Any]) -> Any:
    """Create an environment from its Gymnasium id, or from a factory's import path.

    Raises:
        UserError: the environment does not exist or cannot be created.
    """
    check_installed("gymnasium")
    if _is_path(game):
        return _call_factory(game, import_object(game), kwargs)
    import gymnasium

    module = game.rpartition(":")[0]
    if module:  # import it here, because Gymnasium would look among installed modules only
        _import_game(module, game)
    return _call_factory(game, lambda **arguments: gymnasium.make(game, **arguments), kwargs)


def make_pettingzoo_env(game: str, kwargs: Mapping[str, object]) -> object:
    """Create an environment from a module with ``env`` or ``parallel_env``, or from a factory's import path.

    Raises:
        UserError: the environment does not exist or cannot be created.
    """
    check_installed("pettingzoo")
    if _is_path(game):
        return _call_factory(game, import_object(game), kwargs)
    module = _import_game(game, game)
    factory = getattr(module, "env", None) or getattr(module, "parallel_env", None)
    if factory is None:
        raise UserError(f"environment.game: {game} has neither env nor parallel_env; give 'my_package.module:factory'")
    return _call_factory(game, factory, kwargs)


def _import_game(module: str, game: str) -> ModuleType:
    """Import a game's module.

    Raises:
        UserError: the import failed.
    """
    try:
        return import_user_module(module)
    except Exception as error:  # a third-party module runs here
        package, _, submodule = module.partition(".")
        family = submodule.partition(".")[0]
        hint = (
            f"; games want packages of their own: pip install 'pettingzoo[{family}]'"
            if package == "pettingzoo" and family and isinstance(error, ModuleNotFoundError)
            else ""
        )
        raise UserError(f"environment.game: cannot import {game!r}: {describe_error(error)}{hint}") from error


def supports_ansi(env: Any) -> bool:
    """Return True if an environment supports ANSI rendering."""
    return "ansi" in (getattr(env, "metadata", None) or {}).get("render_modes", ())


def check_installed(package: str) -> None:
    """Raise an error if a package is missing.

    Raises:
        UserError: the package is missing.
    """
    if find_spec(package) is None:
        raise UserError(f"environment: {package} is not installed; {install_command(package)}")


def _is_path(game: str) -> bool:
    """Return True for an import path.

    Gymnasium ids may contain a module too, as in ``module:Game-v0``; they are not import paths.
    """
    return bool(import_path_module(game)) and game.partition(":")[2].isidentifier()


def _call_factory(game: str, factory: Callable[..., object], kwargs: Mapping[str, object]) -> object:
    try:
        return factory(**fill_variables(dict(kwargs)))
    except Exception as error:  # a third-party game runs here
        message = mask_values(list(variable_values(kwargs)), describe_error(error))
        raise UserError(f"environment.game: {game} cannot be made with {dict(kwargs)}: {message}") from error


FIRST_SEED: Mapping[Split, int] = {"train": 0, "validation": 10**9, "test": 15 * 10**8}  # first seed of each split
MAX_IDLE_SEEDS = 2000  # consecutive seeds without a new first observation after which the search stops


class SeededEnvironment(Environment):
    """Base class for third-party games (Gymnasium, PettingZoo); each task is a seed of the game."""

    game: NonEmptyString = Field(description="name of the game")
    kwargs: PlainTable = Field(default={}, description="keyword arguments for creating the game")
    variants: Annotated[tuple[PlainTable, ...], Strict(False)] = Field(
        default=(), description="additional keyword arguments, used in rotation; each set is one kind of task"
    )
    split_by: Literal["seeds", "content"] = Field(
        default="seeds",
        description=(
            "rule for splits; seeds: separate seeds per split; content: the first observation decides the split, "
            "without repeats"
        ),
    )
    seed: Annotated[int, Field(ge=0, lt=10**8)] = Field(default=0, description="offset of the first seed")
    train_tasks: Annotated[int, Field(ge=1, le=10**6)] = Field(default=1000, description="number of training seeds")
    held_out_tasks: Annotated[int, Field(ge=1, le=10**6)] = Field(
        default=200, description="number of validation seeds, and of test seeds"
    )
    action_names: Names = Field(default=(), description="names of the actions, in the game's order; []: numbers")
    observation_names: Names = Field(default=(), description="names of the observation's numbers or parts, in order")
    digits: Annotated[int, Field(ge=1, le=15)] = Field(
        default=3, description="significant digits of numbers in observations"
    )
    show_actions: bool = Field(
        default=True, description="list the legal actions in the observation, besides the options"
    )
    max_steps: SmallCount = Field(default=100, description="maximum steps per episode; then the episode is truncated")
    reward_scale: Annotated[float, Field(ge=-1e6, le=1e6)] = Field(default=1.0, description="factor for rewards")
    success_threshold: Bounded | None = Field(
        default=None,
        description="minimum return for success, before `reward_scale`; default: the game's `is_success` or `success`",
    )

    @abstractmethod
    def first_observation(self, seed: int, kwargs: Mapping[str, object]) -> str:
        """Return the full text of a game's first observation."""

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return a split's seeds, as tasks.

        With ``split_by = "content"`` there are fewer than requested if the game has no more distinct first
        observations.
        """
        if self.split_by == "content":
            return self._tasks_by_content[split]
        _ = self._first_text
        number = self.train_tasks if split == "train" else self.held_out_tasks
        return [self._make_task(FIRST_SEED[split] + self.seed + index, index) for index in range(number)]

    @cached_property
    def _first_text(self) -> str:
        """Return the first task's first observation; an unplayable game then fails before training.

        Raises:
            UserError: the game cannot be played.
        """
        first = self._make_task(FIRST_SEED["train"] + self.seed, 0)
        return self.first_observation(first.data["seed"], first.data["kwargs"])

    @cached_property
    def _tasks_by_content(self) -> dict[Split, list[Task]]:
        wanted: dict[Split, int] = {
            "train": self.train_tasks,
            "validation": self.held_out_tasks,
            "test": self.held_out_tasks,
        }
        return fill_splits(((assign_split(text), task) for text, task in self._distinct_tasks()), wanted)

    def _distinct_tasks(self) -> Iterator[tuple[str, Task]]:
        """Yield tasks with new first observations until ``MAX_IDLE_SEEDS`` consecutive seeds give none."""
        seen, idle = set[str](), 0
        for index in count():
            task = self._make_task(self.seed + index, index)
            text = self.first_observation(task.data["seed"], task.data["kwargs"])
            idle += 1
            if text not in seen:
                seen.add(text)
                yield text, task
                idle = 0
            if idle == MAX_IDLE_SEEDS:
                return

    def _make_task(self, seed: int, index: int) -> Task:
        extra = self.variants[index % len(self.variants)] if self.variants else {}
        return Task(
            f"{self.game}/{seed}", f"{self.game}, seed {seed}", {"seed": seed, "kwargs": {**self.kwargs, **extra}}
        )

    def is_success(self, total_reward: float, info: Mapping[str, object]) -> bool | None:
        """Return True if a finished episode solved its task; None if the game does not report it.

        Args:
            total_reward: return of the episode, before ``reward_scale``.
            info: the game's last info.
        """
        if self.success_threshold is not None:
            return total_reward >= self.success_threshold
        success = info.get("is_success", info.get("success"))
        return None if success is None else bool(success)
