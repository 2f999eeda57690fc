"""Conversion between actions in a space and their texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from marft.agents.answers import denied, find_answer, given_together, statement_in
from marft.agents.answers import named as found_alone

MOST = 8192  # maximum actions in a space
MOST_LISTED = 256  # maximum legal actions at one time


@dataclass(frozen=True)
class Acts:
    """The actions in a space.

    Args:
        named: value for the environment, by text.
        parts: indices of the action's components, by text, as action masks use them.
    """

    named: Mapping[str, Any]
    parts: Mapping[str, tuple[int, ...]]

    def allowed(self, mask: object = None) -> tuple[str, ...]:
        """Return texts for the allowed actions.

        Args:
            mask: one array over actions, or one array per component; None allows all actions.

        Raises:
            ValueError: the mask allows no action, allows too many to list, or does not match the space.
        """
        if mask is None:
            return _listed(tuple(self.named))
        try:
            one = len(next(iter(self.parts.values()))) == 1 and _flat(mask)
            rows = [mask] if one else list(mask)  # type: ignore[call-overload]
            found = tuple(
                text for text, parts in self.parts.items() if all(row[at] for row, at in zip(rows, parts, strict=True))
            )
        except (IndexError, ValueError, TypeError) as error:
            raise ValueError(
                f"the action mask {mask!r:.100} does not fit an action space of {len(self.named)}"
            ) from error
        if not found:
            raise ValueError("the action mask allows no action at all")
        return _listed(found)


def acts_of(space: Any, names: Sequence[str] = ()) -> Acts:
    """Enumerate the actions in a space.

    Args:
        space: a Discrete, MultiDiscrete or MultiBinary space.
        names: texts of the actions, in the space's order; () uses their numbers.

    Raises:
        ValueError: the space is of another type or too large, or ``names`` has a wrong length.
    """
    kind = type(space).__name__
    if kind == "Discrete":
        sizes, first = [int(space.n)], int(space.start)
    elif kind == "MultiDiscrete":
        sizes, first = [int(size) for size in np.ravel(space.nvec)], 0
    elif kind == "MultiBinary":
        sizes, first = [2] * int(prod(space.shape)), 0
    else:
        raise ValueError(
            f"its actions are a {kind}, and agents choose from few: Discrete, MultiDiscrete, MultiBinary; "
            "wrap it so that it takes one of them, in a factory of yours"
        )
    count = prod(sizes)
    if count > MOST:
        many = f"{count:,}" if count < MOST**8 else "countless"
        raise ValueError(f"it has {many} actions, and at most {MOST:,} are enumerated; wrap it so that it has fewer")
    if names and len(names) != count:
        raise ValueError(f"environment.action_names: {len(names)} names for {count} actions")
    named, parts = dict[str, Any](), dict[str, tuple[int, ...]]()
    for number, places in enumerate(product(*map(range, sizes))):
        value = first + places[0] if kind == "Discrete" else _array(space, places)
        text = names[number] if names else str(value) if kind == "Discrete" else " ".join(map(str, np.ravel(value)))
        named[text], parts[text] = value, places
    return Acts(named, parts)


def chosen(text: str, options: Sequence[str]) -> str:
    r"""Return the option stated in a text, or "" if no single option is found.

    A stated answer counts first (in a box or tag, or after "the answer is"). Otherwise the last option named in
    separate words counts. Negated options are ignored. Two options given together at the end count as none.

    >>> chosen("I go left, no: right.", ["left", "right"]), chosen("up", ["left", "right"])
    ('right', '')
    >>> chosen("I choose -1", ["0", "1"]), chosen("0.5", ["0", "1"]), chosen("0 or 1", ["0", "1"])
    ('', '', '')
    >>> chosen("1, not 0", ["0", "1"]), chosen(r"\boxed{1}, as 0 loses", ["0", "1"])
    ('1', '1')
    """
    stated = find_answer(text)
    if stated is None and (line := statement_in(text)) is not None:
        return _named_last(line, options, first=True)
    return _named_last(text if stated is None else stated, options)


def _named_last(text: str, options: Sequence[str], first: bool = False) -> str:
    """Return the option equal to a text, or else the last option (with ``first``, the first) named in it."""
    plain = " ".join(text.split()).casefold()
    found = list[tuple[int, int, str]]()  # end, negated start, and option of each match
    for option in options:
        words = option.casefold()
        if plain.rstrip(".!") == words:
            return option
        if words not in plain:  # cheaper than the regular expression
            continue
        at = [match.start() for match in found_alone(words).finditer(plain)]
        found += [(place + len(words), -place, option) for place in at if not denied(plain, place, place + len(words))]
    found = _longest_each(found)[:: -1 if first else 1]
    if len(found) > 1:
        (one, other) = sorted((found[-1], found[-2]))
        if one[2] != other[2] and given_together(plain[one[0] : -other[1]]):
            return ""
    return found[-1][2] if found else ""


def _longest_each(found: Sequence[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Return the matches in order, without those inside a longer match."""
    kept = list[tuple[int, int, str]]()
    for end, start, option in sorted(found, key=lambda each: (each[0], each[1])):
        while kept and start >= kept[-1][1]:  # it starts no later, so it contains the previous match
            kept.pop()
        if not kept or end > kept[-1][0]:
            kept.append((end, start, option))
    return kept


def _listed(texts: tuple[str, ...]) -> tuple[str, ...]:
    if len(texts) > MOST_LISTED:
        raise ValueError(
            f"{len(texts):,} actions are possible at once, and at most {MOST_LISTED} are listed; have an action mask "
            "allow fewer, or wrap it so that it has fewer"
        )
    return texts


def _array(space: Any, places: Sequence[int]) -> Any:
    start = getattr(space, "start", 0)
    return (np.array(places).reshape(space.shape) + start).astype(space.dtype)


def _flat(mask: object) -> bool:
    return np.ndim(mask) == 1  # type: ignore[arg-type]
