"""Check of the final state: the database, and texts sent to the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from marft_envs.tool_use.goals import Calls
from marft_envs.tool_use.toolbox import StateChanges, apply_calls, write_tool_names


@dataclass(frozen=True, slots=True)
class ExpectedOutcome:
    """Expected outcome from reference calls.

    Args:
        changes: differences from the initial database, as JSON values by path.
        write_paths: paths that each write call changes to their final value, including changes that it reverts.
        outputs: texts that the user must receive.
    """

    changes: dict[str, str]
    write_paths: tuple[frozenset[str], ...]
    outputs: tuple[str, ...]

    def completed_fraction(self, changes: dict[str, str], delivered: str) -> float:
        """Return the fraction of completed writes and delivered outputs, in [0, 1]; 1 if nothing is expected.

        Args:
            changes: changes in the episode's database so far.
            delivered: text sent to the user so far.
        """
        requirements = [all(changes.get(path) == self.changes.get(path) for path in part) for part in self.write_paths]
        requirements += [output in normalize(delivered) for output in map(normalize, self.outputs)]
        return sum(requirements) / len(requirements) if requirements else 1.0

    def is_solved(self, changes: dict[str, str], delivered: str) -> bool:
        """Return True if the database equals the expected database and the user received every output."""
        return changes == self.changes and self.completed_fraction(changes, delivered) == 1.0


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """State of a conversation after a turn.

    Args:
        completed: completed fraction of the requirements, in [0, 1].
        solved: True if the task is solved in case the conversation ends here.
        has_wrong_change: True if a change was made that the reference does not make.
    """

    completed: float
    solved: bool
    has_wrong_change: bool = False


class Checker(Protocol):
    """Checker for a single conversation."""

    def check_turn(self, message: str) -> TaskProgress:
        """Return the verdict after a turn in which the user received ``message``. Call it exactly once per turn."""
        ...


class FinalStateChecker:
    """Checker that compares the database and the texts of a conversation with the expected outcome."""

    def __init__(self, expected: ExpectedOutcome, states: StateChanges) -> None:
        self.expected, self.states = expected, states
        self.delivered = ""

    def check_turn(self, message: str) -> TaskProgress:
        """Return the verdict so far."""
        self.delivered += f"\n{message}"
        changes = self.states.changes()
        is_right = self.expected.is_solved(changes, self.delivered)
        has_wrong_change = not is_right and bool(changes.keys() - self.expected.changes.keys())
        return TaskProgress(self.expected.completed_fraction(changes, self.delivered), is_right, has_wrong_change)


def compute_expected(
    create_toolbox: Callable[[], tuple[Any, StateChanges]], calls: Calls, outputs: Sequence[str]
) -> ExpectedOutcome:
    """Run reference calls; return their expected outcome.

    Args:
        create_toolbox: factory of a toolbox over the initial database; returns the toolbox and the database.
        calls: reference calls, each a tool's name and its arguments. Calls of read-only tools are skipped.
        outputs: texts that the user must receive.
    """
    toolbox, states = create_toolbox()
    names = write_tool_names(type(toolbox))
    states_after = [dict[str, str]()]
    for call in calls:
        if call[0] in names:
            apply_calls(toolbox, [call])
            states_after.append(states.changes())
    last = states_after[-1]
    parts = []
    for before, after_call in pairwise(states_after):
        touched = {path for path in before.keys() | after_call.keys() if before.get(path) != after_call.get(path)}
        final_paths = frozenset(path for path in touched if last.get(path) == after_call.get(path))
        if final_paths:
            parts.append(final_paths)
    return ExpectedOutcome(last, tuple(parts), tuple(outputs))


def normalize(text: str) -> str:
    """Normalize text for the search of outputs: lowercase, no commas."""
    return text.lower().replace(",", "")
