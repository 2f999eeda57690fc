"""Calls into an environment, with validation: each return value becomes plain data or is rejected with a reason.

Values from user code are inspected on the user code's own thread: reading an attribute or formatting a value may
raise, hang or never end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Collection, Mapping, Sequence, Set
from typing import Any

import numpy as np

from marft.agents.environment import Environment, Session
from marft.common.declared import Declared
from marft.common.texts import cut, storable
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.settings import did_you_mean

LARGEST_TEXT = 16 * 2**20  # maximum characters of an observation text
SHOWN = 100  # maximum characters of a rejected value in an error message
METHODS = ("reset", "step", "close")
LARGEST_COUNT = 2**31 - 1
MEASURE = re.compile(r"\w{1,64}")  # allowed names of measures
NOTHING = Declared()


class RefusedError(ValueError):
    """Invalid return value from user code; the message continues a sentence that begins with the caller's name."""


async def started(environment: Environment, task: Task, seed: int) -> Session:
    """Start and return a new session.

    Raises:
        RefusedError: the session lacks a required method.
    """
    session: Any = await _awaited(environment.start(task, seed))
    missing = [f"{name}()" for name in METHODS if not callable(getattr(session, name, None))]
    if missing:
        raise RefusedError(f"returned {type(session).__name__}, not a session: it has no {' and no '.join(missing)}")
    return session  # type: ignore[no-any-return]


async def reset(session: Session) -> Observation:
    """Reset a session and return the first observation.

    Raises:
        RefusedError: the observation is invalid.
    """
    return whole(await _awaited(session.reset()))


async def stepped(session: Session, actions: JointAction, roles: Collection[str], task: Task) -> tuple[Step, Declared]:
    """Apply a joint action and return the step and the step info in plain values.

    Unknown keys in ``info`` are ignored.

    Raises:
        RefusedError: a value of the step or its info is invalid.
    """
    step = await _awaited(session.step(actions))
    if not isinstance(step, Step):
        raise RefusedError(f"returned {type(step).__name__}, not marft.common.types.Step")
    read = Step(
        whole(step.observation),
        number(step.reward, "gave the team a reward of"),
        terminated=flag(step.terminated, "terminated"),
        truncated=flag(step.truncated, "truncated"),
        agent_rewards=own_rewards(step.agent_rewards, roles),
        success=None if step.success is None else flag(step.success, "success"),
    )
    return read, declared(step.info, task.data)


async def closed(session: Session) -> None:
    """Close a session."""
    await _awaited(session.close())


def whole(observation: object) -> Observation:
    """Return an observation in plain values, fit for rendering and storage.

    Raises:
        RefusedError: the observation is invalid.
    """
    if not isinstance(observation, Observation):
        raise RefusedError(f"observed a {type(observation).__name__}, not an Observation")
    views: object = observation.views
    options: object = observation.options
    turn: object = observation.turn
    if not views and not options and not turn:
        return Observation(_text(observation.text))
    if not isinstance(turn, Sequence) or isinstance(turn, str) or not all(isinstance(role, str) for role in turn):
        raise RefusedError(f"said that it is the turn of {_shown(turn)}; must be a tuple of roles")
    return Observation(
        _text(observation.text),
        {role: _text(view) for role, view in _roles(views, "views").items()},
        tuple(map(_text, turn)),
        {role: _options(role, texts) for role, texts in _roles(options, "options").items()},
    )


def _roles(given: object, name: str) -> dict[str, object]:
    if not isinstance(given, Mapping) or not all(isinstance(role, str) for role in given):
        raise RefusedError(f"observed {name} {_shown(given)}; must be a mapping from roles")
    return {_text(role): value for role, value in given.items()}


def _text(text: object) -> str:
    if not isinstance(text, str) or storable(text) != text:
        raise RefusedError(f"observed {_shown(text)}, which is no whole text")
    if len(text) > LARGEST_TEXT:
        raise RefusedError(f"observed a text of {len(text):,} characters; at most {LARGEST_TEXT:,} are read")
    return str.__str__(text)


def _options(role: str, texts: object) -> tuple[str, ...]:
    """Return an agent's options: distinct, nonempty texts."""
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not texts:
        raise RefusedError(f"gave {role} options {_shown(texts)}; must be a tuple of texts, at least one")
    read = tuple(map(_text, texts))
    if len(set(read)) < len(read) or not all(map(str.strip, read)):
        raise RefusedError(f"gave {role} options {_shown(read)}; must differ, and none may be empty")
    return read


def number(value: object, gave: str) -> float:
    """Return a finite number as a float; NumPy scalars and 0-dimensional tensors count.

    Args:
        gave: beginning of the error message.

    Raises:
        RefusedError: the value is not a finite number.
    """
    plain = _plain(value)
    try:
        if isinstance(plain, int | float) and math.isfinite(plain):
            return float(plain)
    except OverflowError:  # an integer beyond the range of floats
        pass
    raise RefusedError(f"{gave} {_shown(value)}; must be finite, and a number")


def own_rewards(rewards: object, roles: Collection[str]) -> dict[str, float]:
    """Return validated rewards for single agents, by role.

    Raises:
        RefusedError: the value is not a mapping from roles of the team to finite numbers.
    """
    if not isinstance(rewards, Mapping):
        raise RefusedError(f"gave agent_rewards {_shown(rewards)}; must be a mapping from roles to numbers")
    read = {}
    for role, reward in rewards.items():
        if not isinstance(role, str) or role not in roles:
            hint = did_you_mean(role, roles) if isinstance(role, str) else ""
            raise RefusedError(f"rewards an agent {_shown(role)} that is not in the team{hint}")
        read[str.__str__(role)] = number(reward, f"gave {role} a reward of")
    return read


def flag(value: object, name: str) -> bool:
    """Return a Boolean; the numbers 0 and 1 count.

    Raises:
        RefusedError: the value is neither true nor false.
    """
    plain = _plain(value)
    if isinstance(plain, int) and plain in (0, 1):
        return bool(plain)
    raise RefusedError(f"said {name} = {_shown(value)}; must be True or False")


def declared(info: object, data: object) -> Declared:
    """Return the step info from a step's ``info``, with the task's data as fallback for constants.

    Raises:
        RefusedError: a value is invalid.
    """
    of_step, of_task = map(_mapping, (info, data))
    progress = of_step.get("progress")
    right, allowed, fewest = (
        of_task.get(key) if (said := of_step.get(key)) is None else said
        for key in ("right_tools", "allowed_tools", "fewest_steps")
    )
    measures, hidden = of_step.get("measures"), of_step.get("hidden")
    if all(one is None for one in (progress, right, allowed, fewest, measures, hidden)):
        return NOTHING
    return Declared(
        None if progress is None else _share(progress, "progress"),
        None if right is None else _names(right, "right_tools"),
        None if allowed is None else _by_role(allowed, "allowed_tools"),
        None if fewest is None else _count(fewest, "fewest_steps"),
        {} if measures is None else _measures(measures),
        {} if hidden is None else _texts(hidden, "hidden"),
    )


def _mapping(given: Any) -> Mapping[object, object]:
    return given if issubclass(type(given), Mapping) else {}


def _share(value: object, name: str) -> float:
    share = number(value, f"declared {name} =")
    if not 0.0 <= share <= 1.0:
        raise RefusedError(f"declared {name} = {_shown(value)}; must be from 0 to 1")
    return share


def _count(value: object, name: str) -> int:
    plain = _plain(value)
    if isinstance(plain, int) and not isinstance(plain, bool) and 1 <= plain <= LARGEST_COUNT:
        return plain
    raise RefusedError(f"declared {name} = {_shown(value)}; must be a whole number, at least 1")


def _names(value: Any, name: str) -> tuple[str, ...]:
    """Return tool names from one text or a collection."""
    given = (value,) if isinstance(value, str) else value
    if issubclass(type(given), Sequence | Set):
        names = tuple(given)
        if all(isinstance(one, str) and storable(one) == one for one in names):
            return tuple(map(str.__str__, names))
    raise RefusedError(f"declared {name} = {_shown(value)}; must be names of tools, [] where none is")


def _by_role(value: object, name: str) -> dict[str, tuple[str, ...]]:
    table = _mapping(value)
    if table is value and all(isinstance(role, str) and storable(role) == role for role in table):
        return {str.__str__(role): _names(names, f"{name} of {role}") for role, names in table.items()}
    raise RefusedError(f"declared {name} = {_shown(value)}; must be a mapping from roles to names of tools")


def _measures(value: object) -> dict[str, float]:
    """Return numbers by measure name; the names must be valid in metric names."""
    table = _mapping(value)
    names = [name for name in table if isinstance(name, str) and MEASURE.fullmatch(name)]
    if table is not value or len(names) < len(table):
        raise RefusedError(
            f"declared measures = {_shown(value)}; must be a mapping from names of letters, digits and _ to numbers"
        )
    return {str.__str__(name): number(table[name], f"declared the measure {name} =") for name in names}


def _texts(value: object, name: str) -> dict[str, str]:
    """Return validated texts by role."""
    table = _mapping(value)
    texts = [text for pair in table.items() for text in pair]
    if table is value and all(isinstance(text, str) and storable(text) == text for text in texts):
        return {str.__str__(str(role)): str.__str__(str(text)) for role, text in table.items()}
    raise RefusedError(f"declared {name} = {_shown(value)}; must be a mapping from roles to texts")


def _plain(value: Any) -> object:
    """Return the Python value in a NumPy scalar or 0-dimensional tensor; other values unchanged."""
    scalar = isinstance(value, np.generic) or (hasattr(value, "item") and getattr(value, "shape", None) == ())
    return value.item() if scalar else value


def _shown(value: object) -> str:
    try:
        return cut(storable(repr(value)), SHOWN)
    except Exception:  # noqa: BLE001  repr() of user code's value, or an integer too long to format
        return f"a {type(value).__name__}"


async def _awaited(result: object) -> object:
    return await result if isinstance(result, Awaitable) else result
