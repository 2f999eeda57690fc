"""Turn-by-turn checker from the Berkeley function-calling leaderboard (Patil et al., ``multi_turn_checker.py``)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marft_envs.tool_use.checkers import TaskProgress
from marft_envs.tool_use.class_toolbox import ClassToolbox
from marft_envs.tool_use.goals import Calls
from marft_envs.tool_use.toolbox import apply_calls


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


def _state_digest(toolbox: ClassToolbox) -> str:
    return _digest(json.dumps(sorted(toolbox.changes().items())))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
