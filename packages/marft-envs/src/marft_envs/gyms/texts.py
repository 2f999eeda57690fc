"""Text forms of a space: its actions, and observations with rounded numbers, named parts and colors as tags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from marft.agents.answers import find_answer, find_statement, is_negated, is_separator
from marft.agents.answers import match_words as found_alone
from marft.common.errors import UserError

MAX_ACTIONS = 8192  # maximum actions in a space
MAX_LISTED = 256  # maximum legal actions at one time


@dataclass(frozen=True)
class ActionSpace:
    """The actions in a space.

    Args:
        values: value for the environment, by text.
        indices: indices of the action's components, by text, as action masks use them.
    """

    values: Mapping[str, object]
    indices: Mapping[str, tuple[int, ...]]

    def allowed_actions(self, mask: object = None) -> tuple[str, ...]:
        """Return texts for the allowed actions.

        Args:
            mask: one array over actions, or one array per component; None allows all actions.

        Raises:
            UserError: the mask allows no action, allows too many to list, or does not match the space.
        """
        if mask is None:
            return _check_count(tuple(self.values))
        try:
            single_mask = len(next(iter(self.indices.values()))) == 1 and _is_flat(mask)
            rows = [mask] if single_mask else list(mask)  # type: ignore[call-overload]
            allowed = tuple(
                text
                for text, parts in self.indices.items()
                if all(row[at] for row, at in zip(rows, parts, strict=True))
            )
        except (IndexError, ValueError, TypeError) as error:
            raise UserError(
                f"the action mask {mask!r:.100} does not fit an action space of {len(self.values)}"
            ) from error
        if not allowed:
            raise UserError("the action mask allows no action at all")
        return _check_count(allowed)


def enumerate_actions(space: Any, names: Sequence[str] = ()) -> ActionSpace:
    """Enumerate the actions in a space.

    Args:
        space: a Discrete, MultiDiscrete or MultiBinary space.
        names: texts of the actions, in the space's order; () uses their numbers.

    Raises:
        UserError: the space is of another type or too large, or ``names`` has a wrong length.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        sizes, first = [int(space.n)], int(space.start)
    elif kind == "MultiDiscrete":
        sizes, first = [int(size) for size in np.ravel(space.nvec)], 0
    elif kind == "MultiBinary":
        sizes, first = [2] * int(prod(space.shape)), 0
    else:
        raise UserError(
            f"its actions are a {kind}, and agents choose from few: Discrete, MultiDiscrete, MultiBinary; "
            "wrap it so that it takes one of them, in a factory of yours"
        )
    count = prod(sizes)
    if count > MAX_ACTIONS:
        many = f"{count:,}" if count < MAX_ACTIONS**8 else "countless"
        raise UserError(
            f"it has {many} actions, and at most {MAX_ACTIONS:,} are enumerated; wrap it so that it has fewer"
        )
    if names and len(names) != count:
        raise UserError(f"environment.action_names: {len(names)} names for {count} actions")
    values, parts = dict[str, Any](), dict[str, tuple[int, ...]]()
    for number, places in enumerate(product(*map(range, sizes))):
        value = first + places[0] if kind == "Discrete" else _to_array(space, places)
        text = names[number] if names else str(value) if kind == "Discrete" else " ".join(map(str, np.ravel(value)))
        values[text], parts[text] = value, places
    return ActionSpace(values, parts)


def parse_choice(text: str, options: Sequence[str]) -> str:
    r"""Return the option stated in a text, or "" if no single option is found.

    A stated answer counts first (in a box or tag, or after "the answer is"). Otherwise the last option named in
    separate words counts. Negated options are ignored. Two options given together at the end count as none.

    >>> parse_choice("I go left, no: right.", ["left", "right"]), parse_choice("up", ["left", "right"])
    ('right', '')
    >>> parse_choice("I choose -1", ["0", "1"]), parse_choice("0.5", ["0", "1"]), parse_choice("0 or 1", ["0", "1"])
    ('', '', '')
    >>> parse_choice("1, not 0", ["0", "1"]), parse_choice(r"\boxed{1}, as 0 loses", ["0", "1"])
    ('1', '1')
    """
    answer = find_answer(text)
    if answer is None and (line := find_statement(text)) is not None:
        return _find_last_option(line, options, first=True)
    return _find_last_option(text if answer is None else answer, options)


def _find_last_option(text: str, options: Sequence[str], first: bool = False) -> str:
    """Return the option equal to a text, or else the last option (with ``first``, the first) named in it."""
    plain = " ".join(text.split()).casefold()
    matches = list[tuple[int, int, str]]()  # end, negated start, and option of each match
    for option in options:
        words = option.casefold()
        if plain.rstrip(".!") == words:
            return option
        if words not in plain:  # cheaper than the regular expression
            continue
        at = [match.start() for match in found_alone(words).finditer(plain)]
        matches += [
            (place + len(words), -place, option) for place in at if not is_negated(plain, place, place + len(words))
        ]
    matches = _longest_matches(matches)[:: -1 if first else 1]
    if len(matches) > 1:
        (previous, last) = sorted((matches[-1], matches[-2]))
        if previous[2] != last[2] and is_separator(plain[previous[0] : -last[1]]):
            return ""
    return matches[-1][2] if matches else ""


def _longest_matches(matches: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Return the matches in order, without those inside a longer match."""
    longest = list[tuple[int, int, str]]()
    for end, start, option in sorted(matches, key=lambda match: (match[0], match[1])):
        while longest and start >= longest[-1][1]:  # it starts no later, so it contains the previous match
            longest.pop()
        if not longest or end > longest[-1][0]:
            longest.append((end, start, option))
    return longest


def _check_count(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(texts) > MAX_LISTED:
        raise UserError(
            f"{len(texts):,} actions are possible at once, and at most {MAX_LISTED} are listed; have an action mask "
            "allow fewer, or wrap it so that it has fewer"
        )
    return texts


def _to_array(space: Any, places: Sequence[int]) -> Any:
    start = getattr(space, "start", 0)
    return (np.array(places).reshape(space.shape) + start).astype(space.dtype)


def _is_flat(mask: object) -> bool:
    return np.ndim(mask) == 1  # type: ignore[arg-type]


MAX_NUMBERS = 2000  # maximum numbers in a text
COLOR_CODE = re.compile(r"\x1b\[([\d;]*)m")
COLORS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")


def format_value(value: Any, names: Sequence[str] = (), digits: int = 3) -> str:
    """Convert a value from any space to text.

    Args:
        value: the observation.
        names: names of the numbers in a row, or of the parts.
        digits: significant digits of numbers.

    Raises:
        UserError: the value has too many numbers or an unsupported type.

    >>> print(format_value({"hand": (20, 7, 0), "at": np.array([0.12345, -1.0])}))
    hand: 20, 7, 0
    at: 0.123, -1
    """
    if isinstance(value, dict):
        return "\n".join(_with_title(str(name), format_value(part, digits=digits)) for name, part in value.items())
    if isinstance(value, str):
        return value
    if isinstance(value, tuple | list):
        parts = [format_value(part, digits=digits) for part in value]
        return _join_parts(parts, names)
    if not isinstance(value, np.ndarray | np.generic | int | float | bool):
        raise UserError(
            f"a {type(value).__name__} cannot be told in words; give rendering = 'my_package.module:function'"
        )
    numbers = np.asarray(value)
    if numbers.size > MAX_NUMBERS:
        raise UserError(
            f"{numbers.size:,} numbers ({' × '.join(map(str, numbers.shape))}) are no text that anybody reads; "
            "give rendering = 'my_package.module:function', which tells it in words"
        )
    if numbers.ndim == 0:
        return _format_number(numbers, digits)
    if numbers.ndim == 1:
        return _join_parts([_format_number(number, digits) for number in numbers], names)
    separator = "\n" if numbers.ndim == 2 else "\n\n"
    return separator.join(format_value(part, digits=digits) for part in numbers)


def strip_colors(text: str) -> str:
    r"""Replace terminal color codes in a text with tags.

    >>> strip_colors("\x1b[41mS\x1b[0mFF")
    '<on red>S</>FF'
    """
    return COLOR_CODE.sub(lambda match: _color_tag(match[1]), text).strip("\n")


def _color_tag(codes: str) -> str:
    names = []
    for code in codes.split(";"):
        number = int(code or 0)
        if 30 <= number % 60 <= 37:
            names.append(COLORS[number % 10])
        elif 40 <= number % 60 <= 47:
            names.append(f"on {COLORS[number % 10]}")
    return f"<{' '.join(names)}>" if names else "</>"


def _format_number(value: object, digits: int) -> str:
    number = value.item() if isinstance(value, np.generic | np.ndarray) else value
    if isinstance(number, bool):
        return "yes" if number else "no"
    if isinstance(number, float):
        number += 0.0  # turns -0.0 into 0.0
    return f"{number:.{digits}g}" if isinstance(number, float) and abs(number) < 1e6 else f"{number}"


def _join_parts(parts: Sequence[str], names: Sequence[str]) -> str:
    if len(names) == len(parts):
        return "\n".join(_with_title(name, part) for name, part in zip(names, parts, strict=True))
    return ("\n" if any("\n" in part for part in parts) else ", ").join(parts)


def _with_title(name: str, text: str) -> str:
    return f"{name}:\n{text}" if "\n" in text else f"{name}: {text}"
