"""Check of the final state: the database, and texts sent to the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from marft_envs.tool_use.goals import Calls
from marft_envs.tool_use.toolbox import States, run, writing


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected outcome from reference calls.

    Args:
        changes: differences from the initial database, as JSON values by path.
        parts: paths that each write call changes to their final value, including changes that it reverts.
        outputs: texts that the user must receive.
    """

    changes: dict[str, str]
    parts: tuple[frozenset[str], ...]
    outputs: tuple[str, ...]

    def done(self, changes: dict[str, str], told: str) -> float:
        """Return the fraction of completed writes and delivered outputs, in [0, 1]; 1 if nothing is expected.

        Args:
            changes: changes in the episode's database so far.
            told: text sent to the user so far.
        """
        met = [all(changes.get(path) == self.changes.get(path) for path in part) for part in self.parts]
        met += [output in normal(told) for output in map(normal, self.outputs)]
        return sum(met) / len(met) if met else 1.0

    def solved(self, changes: dict[str, str], told: str) -> bool:
        """Return True if the database equals the expected database and the user received every output."""
        return changes == self.changes and self.done(changes, told) == 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """State of a conversation after a turn.

    Args:
        done: completed fraction of the requirements, in [0, 1].
        right: True if the task is solved in case the conversation ends here.
        spoilt: True if a change was made that the reference does not make.
    """

    done: float
    right: bool
    spoilt: bool = False


class Checker(Protocol):
    """Checker for a single conversation."""

    def after(self, said: str) -> Verdict:
        """Return the verdict after a turn in which the user received ``said``. Call it exactly once per turn."""
        ...


class AtTheEnd:
    """Checker that compares the database and the texts of a conversation with the expected outcome."""

    def __init__(self, expected: Expected, states: States) -> None:
        self.expected, self.states = expected, states
        self.told = ""

    def after(self, said: str) -> Verdict:
        """Return the verdict so far."""
        self.told += f"\n{said}"
        changes = self.states.changes()
        right = self.expected.solved(changes, self.told)
        spoilt = not right and bool(changes.keys() - self.expected.changes.keys())
        return Verdict(self.expected.done(changes, self.told), right, spoilt)


def expected(fresh: Callable[[], tuple[Any, States]], calls: Calls, outputs: Sequence[str]) -> Expected:
    """Run reference calls; return their expected outcome.

    Args:
        fresh: factory of a toolbox over the initial database; returns the toolbox and the database.
        calls: reference calls, each a tool's name and its arguments. Calls of read-only tools are skipped.
        outputs: texts that the user must receive.
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
    """Normalize text for the search of outputs: lowercase, no commas."""
    return text.lower().replace(",", "")
