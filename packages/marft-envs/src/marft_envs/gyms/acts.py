"""The actions of a space, one text each, and the other way round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from marft.agents.answers import denied, find_answer, given_together, statement_in
from marft.agents.answers import named as found_alone

MOST = 8192  # actions of a space
MOST_LISTED = 256  # that are possible at once


@dataclass(frozen=True)
class Acts:
    """The actions of a space.

    Args:
        named: what the environment is given, by text.
        parts: of each action the numbers of its parts, as masks have them; None where it is one number.
        whole: whether the environment takes a number, and not an array.
    """

    named: Mapping[str, Any]
    parts: Mapping[str, tuple[int, ...]]

    def allowed(self, mask: object = None) -> tuple[str, ...]:
        """The texts of what a mask allows: one array of the action's numbers, or one for each part of it.

        Raises:
            ValueError: it allows nothing, or more than can be listed, or fits no action of the space.
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
    """The actions of a space.

    Args:
        names: of them, in the space's order; (): their numbers.

    Raises:
        ValueError: it is none of few, or has another number of actions than names.
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
    r"""The option that a text states as its answer (in a box or tag, after "the answer is"), or is; else the one that
    it names last as words of its own, without those that it denies. "" where it names none, or two together at the end.

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
    """Return the option that a text is, or names last; or first."""
    plain = " ".join(text.split()).casefold()
    found = list[tuple[int, int, str]]()  # where each ends and, negated, begins
    for option in options:
        words = option.casefold()
        if plain.rstrip(".!") == words:
            return option
        if words not in plain:  # which is known sooner
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
    """Return what is named, in order, without what is part of something longer."""
    kept = list[tuple[int, int, str]]()
    for end, start, option in sorted(found, key=lambda each: (each[0], each[1])):
        while kept and start >= kept[-1][1]:  # it begins no later: it holds that one
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
