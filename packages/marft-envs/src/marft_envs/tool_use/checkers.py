"""Checks of a conversation.

One checks the final state: the database, and texts sent to the user. The other goes turn by turn, as the Berkeley
function-calling leaderboard (Patil et al., ``multi_turn_checker.py``).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from marft_envs.tool_use.class_toolbox import ClassToolbox
from marft_envs.tool_use.goals import Calls
from marft_envs.tool_use.toolbox import EpisodeTables, Toolbox, apply_calls, write_tool_names


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

    def completed_fraction(self, changes: dict[str, str], sent_text: str) -> float:
        """Return the fraction of completed writes and delivered outputs, in [0, 1]; 1 if nothing is expected.

        Args:
            changes: changes in the episode's database so far.
            sent_text: text sent to the user so far.
        """
        requirements = [all(changes.get(path) == self.changes.get(path) for path in part) for part in self.write_paths]
        requirements += [output in normalize(sent_text) for output in map(normalize, self.outputs)]
        return sum(requirements) / len(requirements) if requirements else 1.0

    def is_solved(self, changes: dict[str, str], sent_text: str) -> bool:
        """Return True if the database equals the expected database and the user received every output."""
        return changes == self.changes and self.completed_fraction(changes, sent_text) == 1.0


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """State of a conversation after a turn.

    Args:
        completed: completed fraction of the requirements, in [0, 1].
        solved: True if the task is solved in case the conversation ends here.
        has_wrong_change: True if a change was made that the reference does not make.
    """

    completed: float
    is_solved: bool
    has_wrong_change: bool = False


class FinalStateChecker:
    """Checker that compares the database and the texts of a conversation with the expected outcome."""

    def __init__(self, expected: ExpectedOutcome, states: EpisodeTables) -> None:
        self.expected, self.states = expected, states
        self.sent_text = ""

    def check_turn(self, message: str) -> TaskProgress:
        """Return the verdict so far."""
        self.sent_text += f"\n{message}"
        changes = self.states.changes()
        is_right = self.expected.is_solved(changes, self.sent_text)
        has_wrong_change = not is_right and bool(changes.keys() - self.expected.changes.keys())
        return TaskProgress(self.expected.completed_fraction(changes, self.sent_text), is_right, has_wrong_change)


def compute_expected(create_toolbox: Callable[[], Toolbox], calls: Calls, outputs: Sequence[str]) -> ExpectedOutcome:
    """Run reference calls; return their expected outcome.

    Args:
        create_toolbox: factory of a toolbox over the initial database.
        calls: reference calls, each a tool's name and its arguments. Calls of read-only tools are skipped.
        outputs: texts that the user must receive.
    """
    toolbox = create_toolbox()
    names = write_tool_names(type(toolbox))
    states_after = [dict[str, str]()]
    for call in calls:
        if call[0] in names:
            apply_calls(toolbox, [call])
            states_after.append(toolbox.tables.changes())
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


@dataclass(frozen=True, slots=True)
class ExpectedTurn:
    """Expected state and results after a turn's reference calls.

    Both are digests, because states and results can be long.

    Args:
        state: digest of the objects' state after the turn.
        results: digests of the results of the turn's calls, with their counts.
    """

    state: str
    results: Counter[str]


def compute_expected_turns(
    create_toolbox: Callable[[], ClassToolbox], turns: Sequence[Calls]
) -> list[ExpectedTurn | None]:
    """Return the expected result after each turn; None if the reference makes no call in that turn.

    A turn without a reference call is not checked.

    Args:
        create_toolbox: factory of the objects in their initial state.
        turns: reference calls of each turn.
    """
    toolbox = create_toolbox()
    expected: list[ExpectedTurn | None] = []
    for calls in turns:
        before = len(toolbox.results)
        apply_calls(toolbox, calls)
        expected.append(
            ExpectedTurn(_state_digest(toolbox), Counter(map(_digest, toolbox.results[before:]))) if calls else None
        )
    return expected


class TurnChecker:
    """Checker for a conversation, turn by turn.

    A turn is right if three conditions hold. At least one call was made in it. The state after it equals the
    reference's. Each result of its reference calls is among the results so far, at least as often. A conversation is
    right if all its checked turns are right.
    """

    def __init__(self, turns: Sequence[ExpectedTurn | None], toolbox: ClassToolbox) -> None:
        self._remaining_turns, self._toolbox = list(turns), toolbox
        self._required_turns = sum(turn is not None for turn in turns)
        self._right_turns = 0
        self._results = Counter[str]()
        self._seen_results = 0

    def check_turn(self, message: str) -> TaskProgress:  # noqa: ARG002  what is said does not count
        """Return the verdict after a turn."""
        new, self._seen_results = self._toolbox.results[self._seen_results :], len(self._toolbox.results)
        self._results.update(map(_digest, new))
        turn = self._remaining_turns.pop(0)
        if turn and new and _state_digest(self._toolbox) == turn.state and turn.results <= self._results:
            self._right_turns += 1
        self._toolbox.next_turn()
        right = self._right_turns == self._required_turns
        return TaskProgress(
            self._right_turns / self._required_turns if self._required_turns else 1.0,
            right and not any(self._remaining_turns),
        )


Checker = FinalStateChecker | TurnChecker  # checker for a single conversation; call it exactly once per turn


def _state_digest(toolbox: ClassToolbox) -> str:
    return _digest(json.dumps(sorted(toolbox.changes().items())))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
