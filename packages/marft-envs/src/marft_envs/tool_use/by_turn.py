"""The check of the Berkeley function-calling leaderboard (Patil et al., ``multi_turn_checker.py``): turn by turn."""

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
    """What the reference calls of a turn leave behind, as digests: states and results can be long.

    Args:
        state: of the objects after it.
        results: of its calls, and how often each comes.
    """

    state: str
    results: Counter[str]


def expected_turns(fresh: Callable[[], Simulated], turns: Sequence[Calls]) -> list[Turn | None]:
    """What must hold after each turn; None where the reference calls nothing, and nothing is checked.

    Args:
        fresh: makes the objects as they are at first.
        turns: the reference calls of each.
    """
    made = fresh()
    found: list[Turn | None] = []
    for calls in turns:
        before = len(made.results)
        run(made, calls)
        found.append(Turn(_state(made), Counter(map(_digest, made.results[before:]))) if calls else None)
    return found


class ByTurn:
    """Follows one conversation. A turn is right where something was called in it, the state after it is that of the
    reference, and each result of its reference calls is among the results so far, as often; a conversation where all
    its turns are."""

    def __init__(self, turns: Sequence[Turn | None], made: Simulated) -> None:
        self._left, self._made = list(turns), made
        self._needed = sum(turn is not None for turn in turns)
        self._right = 0
        self._results = Counter[str]()
        self._seen = 0

    def after(self, said: str) -> Verdict:  # noqa: ARG002  what is said does not count
        """How it stands at the end of a turn."""
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
