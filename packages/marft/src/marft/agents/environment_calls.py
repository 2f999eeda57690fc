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

from marft.common.errors import UserError
from marft.common.texts import replace_surrogates, truncate
from marft.common.types import JointAction, Observation, Step, StepInfo, Task
from marft.config.interfaces.environment import Environment, Session
from marft.config.settings import did_you_mean

MAX_TEXT_CHARACTERS = 16 * 2**20  # maximum characters of an observation text
MAX_SHOWN_CHARACTERS = 100  # maximum characters of a rejected value in an error message
METHODS = ("reset", "step", "close")
MAX_COUNT = 2**31 - 1
MEASURE_NAME = re.compile(r"\w{1,64}")  # allowed names of measures
NO_INFO = StepInfo()


class RefusedError(UserError):
    """Invalid return value from user code; the message continues a sentence that begins with the caller's name."""


async def start_session(environment: Environment, task: Task, seed: int) -> Session:
    """Start and return a new session.

    Raises:
        RefusedError: the session lacks a required method.
    """
    session: Any = await _await_result(environment.start(task, seed))
    missing = [f"{name}()" for name in METHODS if not callable(getattr(session, name, None))]
    if missing:
        raise RefusedError(f"returned {type(session).__name__}, not a session: it has no {' and no '.join(missing)}")
    return session  # type: ignore[no-any-return]


async def reset_session(session: Session) -> Observation:
    """Reset a session and return the first observation.

    Raises:
        RefusedError: the observation is invalid.
    """
    return validate_observation(await _await_result(session.reset()))


async def step_session(
    session: Session, actions: JointAction, roles: Collection[str], task: Task
) -> tuple[Step, StepInfo]:
    """Apply a joint action and return the step and the step info in plain values.

    Unknown keys in ``info`` are ignored.

    Raises:
        RefusedError: a value of the step or its info is invalid.
    """
    step = await _await_result(session.step(actions))
    if not isinstance(step, Step):
        raise RefusedError(f"returned {type(step).__name__}, not marft.common.types.Step")
    validated = Step(
        validate_observation(step.observation),
        validate_number(step.reward, "gave the team a reward of"),
        terminated=validate_flag(step.terminated, "terminated"),
        truncated=validate_flag(step.truncated, "truncated"),
        agent_rewards=validate_rewards(step.agent_rewards, roles),
        success=None if step.success is None else validate_flag(step.success, "success"),
    )
    return validated, read_step_info(step.info, task.data)


async def close_session(session: Session) -> None:
    """Close a session."""
    await _await_result(session.close())


def validate_observation(observation: object) -> Observation:
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
        return Observation(_validate_text(observation.text))
    if not isinstance(turn, Sequence) or isinstance(turn, str) or not all(isinstance(role, str) for role in turn):
        raise RefusedError(f"said that it is the turn of {_describe(turn)}; must be a tuple of roles")
    return Observation(
        _validate_text(observation.text),
        {role: _validate_text(view) for role, view in _validate_roles(views, "views").items()},
        tuple(map(_validate_text, turn)),
        {role: _validate_options(role, texts) for role, texts in _validate_roles(options, "options").items()},
    )


def _validate_roles(mapping: object, name: str) -> dict[str, object]:
    if not isinstance(mapping, Mapping) or not all(isinstance(role, str) for role in mapping):
        raise RefusedError(f"observed {name} {_describe(mapping)}; must be a mapping from roles")
    return {_validate_text(role): value for role, value in mapping.items()}


def _validate_text(text: object) -> str:
    if not isinstance(text, str) or replace_surrogates(text) != text:
        raise RefusedError(f"observed {_describe(text)}, which is no whole text")
    if len(text) > MAX_TEXT_CHARACTERS:
        raise RefusedError(f"observed a text of {len(text):,} characters; at most {MAX_TEXT_CHARACTERS:,} are read")
    return str.__str__(text)


def _validate_options(role: str, texts: object) -> tuple[str, ...]:
    """Return an agent's options: distinct, nonempty texts."""
    if not isinstance(texts, Sequence) or isinstance(texts, str) or not texts:
        raise RefusedError(f"gave {role} options {_describe(texts)}; must be a tuple of texts, at least one")
    options = tuple(map(_validate_text, texts))
    if len(set(options)) < len(options) or not all(map(str.strip, options)):
        raise RefusedError(f"gave {role} options {_describe(options)}; must differ, and none may be empty")
    return options


def validate_number(value: object, context: str) -> float:
    """Return a finite number as a float; NumPy scalars and 0-dimensional tensors count.

    Args:
        context: beginning of the error message.

    Raises:
        RefusedError: the value is not a finite number.
    """
    plain = _to_python(value)
    try:
        if isinstance(plain, int | float) and math.isfinite(plain):
            return float(plain)
    except OverflowError:  # an integer beyond the range of floats
        pass
    raise RefusedError(f"{context} {_describe(value)}; must be finite, and a number")


def validate_rewards(rewards: object, roles: Collection[str]) -> dict[str, float]:
    """Return validated rewards for single agents, by role.

    Raises:
        RefusedError: the value is not a mapping from roles of the team to finite numbers.
    """
    if not isinstance(rewards, Mapping):
        raise RefusedError(f"gave agent_rewards {_describe(rewards)}; must be a mapping from roles to numbers")
    validated = {}
    for role, reward in rewards.items():
        if not isinstance(role, str) or role not in roles:
            hint = did_you_mean(role, roles) if isinstance(role, str) else ""
            raise RefusedError(f"rewards an agent {_describe(role)} that is not in the team{hint}")
        validated[str.__str__(role)] = validate_number(reward, f"gave {role} a reward of")
    return validated


def validate_flag(value: object, name: str) -> bool:
    """Return a Boolean; the numbers 0 and 1 count.

    Raises:
        RefusedError: the value is neither true nor false.
    """
    plain = _to_python(value)
    if isinstance(plain, int) and plain in (0, 1):
        return bool(plain)
    raise RefusedError(f"said {name} = {_describe(value)}; must be True or False")


def read_step_info(info: object, data: object) -> StepInfo:
    """Return the step info from a step's ``info``, with the task's data as fallback for constants.

    Raises:
        RefusedError: a value is invalid.
    """
    of_step, of_task = map(_as_mapping, (info, data))
    progress = of_step.get("progress")
    right, allowed, min_steps = (
        of_task.get(key) if (step_value := of_step.get(key)) is None else step_value
        for key in ("right_tools", "allowed_tools", "fewest_steps")
    )
    measures, hidden = of_step.get("measures"), of_step.get("hidden")
    if all(value is None for value in (progress, right, allowed, min_steps, measures, hidden)):
        return NO_INFO
    return StepInfo(
        None if progress is None else _validate_share(progress, "progress"),
        None if right is None else _validate_names(right, "right_tools"),
        None if allowed is None else _names_by_role(allowed, "allowed_tools"),
        None if min_steps is None else _validate_count(min_steps, "fewest_steps"),
        {} if measures is None else _validate_measures(measures),
        {} if hidden is None else _validate_texts(hidden, "hidden"),
    )


def _as_mapping(value: Any) -> Mapping[object, object]:
    return value if issubclass(type(value), Mapping) else {}


def _validate_share(value: object, name: str) -> float:
    share = validate_number(value, f"declared {name} =")
    if not 0.0 <= share <= 1.0:
        raise RefusedError(f"declared {name} = {_describe(value)}; must be from 0 to 1")
    return share


def _validate_count(value: object, name: str) -> int:
    plain = _to_python(value)
    if isinstance(plain, int) and not isinstance(plain, bool) and 1 <= plain <= MAX_COUNT:
        return plain
    raise RefusedError(f"declared {name} = {_describe(value)}; must be a whole number, at least 1")


def _validate_names(value: Any, name: str) -> tuple[str, ...]:
    """Return tool names from one text or a collection."""
    values = (value,) if isinstance(value, str) else value
    if issubclass(type(values), Sequence | Set):
        names = tuple(values)
        if all(isinstance(item, str) and replace_surrogates(item) == item for item in names):
            return tuple(map(str.__str__, names))
    raise RefusedError(f"declared {name} = {_describe(value)}; must be names of tools, [] where none is")


def _names_by_role(value: object, name: str) -> dict[str, tuple[str, ...]]:
    table = _as_mapping(value)
    if table is value and all(isinstance(role, str) and replace_surrogates(role) == role for role in table):
        return {str.__str__(role): _validate_names(names, f"{name} of {role}") for role, names in table.items()}
    raise RefusedError(f"declared {name} = {_describe(value)}; must be a mapping from roles to names of tools")


def _validate_measures(value: object) -> dict[str, float]:
    """Return numbers by measure name; the names must be valid in metric names."""
    table = _as_mapping(value)
    names = [name for name in table if isinstance(name, str) and MEASURE_NAME.fullmatch(name)]
    if table is not value or len(names) < len(table):
        raise RefusedError(
            f"declared measures = {_describe(value)}; must be a mapping from names of letters, digits and _ to numbers"
        )
    return {str.__str__(name): validate_number(table[name], f"declared the measure {name} =") for name in names}


def _validate_texts(value: object, name: str) -> dict[str, str]:
    """Return validated texts by role."""
    table = _as_mapping(value)
    texts = [text for pair in table.items() for text in pair]
    if table is value and all(isinstance(text, str) and replace_surrogates(text) == text for text in texts):
        return {str.__str__(str(role)): str.__str__(str(text)) for role, text in table.items()}
    raise RefusedError(f"declared {name} = {_describe(value)}; must be a mapping from roles to texts")


def _to_python(value: Any) -> object:
    """Return the Python value in a NumPy scalar or 0-dimensional tensor; other values unchanged."""
    scalar = isinstance(value, np.generic) or (hasattr(value, "item") and getattr(value, "shape", None) == ())
    return value.item() if scalar else value


def _describe(value: object) -> str:
    try:
        return truncate(replace_surrogates(repr(value)), MAX_SHOWN_CHARACTERS)
    except Exception:  # noqa: BLE001  repr() of user code's value, or an integer too long to format
        return f"a {type(value).__name__}"


async def _await_result(result: object) -> object:
    return await result if isinstance(result, Awaitable) else result
