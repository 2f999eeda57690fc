"""Turn-by-turn checker from the Berkeley function-calling leaderboard (Patil et al., ``multi_turn_checker.py``)."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from marft_envs.tool_use.checking import Verdict
from marft_envs.tool_use.goals import Calls
from marft_envs.tool_use.simulated import Simulated
from marft_envs.tool_use.toolbox import run


@dataclass(frozen=True, slots=True)
class Turn:
    """Expected state and results after a turn's reference calls.

    Both are digests, because states and results can be long.

    Args:
        state: digest of the objects' state after the turn.
        results: digests of the results of the turn's calls, with their counts.
    """

    state: str
    results: Counter[str]


def expected_turns(fresh: Callable[[], Simulated], turns: Sequence[Calls]) -> list[Turn | None]:
    """Return the expected result after each turn; None if the reference makes no call in that turn.

    A turn without a reference call is not checked.

    Args:
        fresh: factory of the objects in their initial state.
        turns: reference calls of each turn.
    """
    made = fresh()
    found: list[Turn | None] = []
    for calls in turns:
        before = len(made.results)
        run(made, calls)
        found.append(Turn(_state(made), Counter(map(_digest, made.results[before:]))) if calls else None)
    return found


class ByTurn:
    """Checker for a conversation, turn by turn.

    A turn is right if three conditions hold. At least one call was made in it. The state after it equals the
    reference's. Each result of its reference calls is among the results so far, at least as often. A conversation is
    right if all its checked turns are right.
    """

    def __init__(self, turns: Sequence[Turn | None], made: Simulated) -> None:
        self._left, self._made = list(turns), made
        self._needed = sum(turn is not None for turn in turns)
        self._right = 0
        self._results = Counter[str]()
        self._seen = 0

    def after(self, said: str) -> Verdict:  # noqa: ARG002  what is said does not count
        """Return the verdict after a turn."""
        new, self._seen = self._made.results[self._seen :], len(self._made.results)
        self._results.update(map(_digest, new))
        turn = self._left.pop(0)
        if turn and new and _state(self._made) == turn.state and turn.results <= self._results:
            self._right += 1
        self._made.next_turn()
        right = self._right == self._needed
        return Verdict(self._right / self._needed if self._needed else 1.0, right and not any(self._left))


def _state(made: Simulated) -> str:
    return _digest(json.dumps(sorted(made.changes().items())))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
