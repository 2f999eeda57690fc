"""Whether what was asked for has been done: the database, and what the user was told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from marft_envs.tool_use.goals import Calls
from marft_envs.tool_use.toolbox import States, run, writing


@dataclass(frozen=True, slots=True)
class Expected:
    """What reference calls leave behind.

    Args:
        changes: what is otherwise than at first, by path.
        parts: of each call that writes, what of that it brings about; "" stands for what it removes again.
        outputs: texts that the user must have been told.
    """

    changes: dict[str, str]
    parts: tuple[frozenset[str], ...]
    outputs: tuple[str, ...]

    def done(self, changes: dict[str, str], told: str) -> float:
        """The share of writes that are done and outputs that were told, from 0 to 1; 1 where there are none.

        Args:
            changes: of the episode's database so far.
            told: all that the user was told so far.
        """
        met = [all(changes.get(path) == self.changes.get(path) for path in part) for part in self.parts]
        met += [output in normal(told) for output in map(normal, self.outputs)]
        return sum(met) / len(met) if met else 1.0

    def solved(self, changes: dict[str, str], told: str) -> bool:
        """Whether the database is the expected one, and all outputs were told."""
        return changes == self.changes and self.done(changes, told) == 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a conversation stands after a turn.

    Args:
        done: the share of what is needed that is done, from 0 to 1.
        right: whether all is as it must be, should the conversation end here.
        spoilt: whether something was changed that must not be.
    """

    done: float
    right: bool
    spoilt: bool = False


class Checker(Protocol):
    """Follows one conversation."""

    def after(self, said: str) -> Verdict:
        """How it stands after a turn, in which the user was told this. To be asked once a turn."""
        ...


class AtTheEnd:
    """Holds the database of one conversation, and all that was told in it, to what is expected of its end."""

    def __init__(self, expected: Expected, states: States) -> None:
        self.expected, self.states = expected, states
        self.told = ""

    def after(self, said: str) -> Verdict:
        """How it stands."""
        self.told += f"\n{said}"
        changes = self.states.changes()
        right = self.expected.solved(changes, self.told)
        spoilt = not right and bool(changes.keys() - self.expected.changes.keys())
        return Verdict(self.expected.done(changes, self.told), right, spoilt)


def expected(fresh: Callable[[], tuple[Any, States]], calls: Calls, outputs: Sequence[str]) -> Expected:
    """What reference calls leave behind.

    Args:
        fresh: makes a toolbox over a database as it is at first, and returns both.
        calls: each a tool's name and its arguments; those that only read are left out.
        outputs: texts that the user must be told.
    """
    toolbox, states = fresh()
    names = writing(type(toolbox))
    after = [dict[str, str]()]
    for call in calls:
        if call[0] in names:
            run(toolbox, [call])
            after.append(states.changes())
    last = after[-1]
    parts = []
    for before, now in pairwise(after):
        touched = {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}
        kept = frozenset(path for path in touched if last.get(path) == now.get(path))
        if kept:
            parts.append(kept)
    return Expected(last, tuple(parts), tuple(outputs))


def normal(text: str) -> str:
    """A text as outputs are looked for in it: small letters, no commas."""
    return text.lower().replace(",", "")
