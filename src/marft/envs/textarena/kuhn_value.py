"""What a way of playing Kuhn poker is worth, exactly: against another one, and against whoever answers it best."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import permutations, product

from marft.envs.textarena.kuhn import CARDS, CHIPS, EQUILIBRIUM, known, won

Strategy = Mapping[tuple[str, str], float]  # the chance to bet or call, by card and what was done
DEALS = ["".join(cards) for cards in permutations(CARDS, 2)]
FIRST = [key for key in EQUILIBRIUM if len(key[1]) % 2 == 0]  # where who begins decides


def value(first: Strategy, second: Strategy) -> float:
    """What who begins earns on the mean, from -1 to 1.

    >>> round(value(EQUILIBRIUM, EQUILIBRIUM) * 36, 9)
    -1.0
    """
    return sum(_expected(cards, "", (first, second)) for cards in DEALS) / len(DEALS)


def exploitability(strategy: Strategy) -> float:
    """How much more than its share the best opponent earns, mean over both seats: 0 for perfect play. (NashConv / 2 of
    the strategy against itself.)

    >>> round(exploitability(EQUILIBRIUM), 9)
    0.0
    """
    as_second = max(value(answer, strategy) for answer in _pure(lambda key: key in FIRST))
    as_first = max(-value(strategy, answer) for answer in _pure(lambda key: key not in FIRST))
    return (as_second + as_first) / 2


def strategy_of(decisions: Iterable[tuple[str, float]]) -> Strategy | None:
    """How somebody plays; None where not all that can come about has.

    Args:
        decisions: what was shown, and the chance with which it then bet or called.
    """
    seen: dict[tuple[str, str], list[float]] = {}
    for shown, chance in decisions:
        seen.setdefault(known(shown), []).append(chance)
    if set(seen) != set(EQUILIBRIUM):
        return None
    return {key: sum(chances) / len(chances) for key, chances in seen.items()}


def _expected(cards: str, done: str, players: tuple[Strategy, Strategy]) -> float:
    chips = won(cards, done)
    if chips is not None:
        return chips / CHIPS
    player = len(done) % 2
    active = players[player][cards[player], done]
    passes, acts = ("f", "c") if done.endswith("b") else ("c", "b")
    return (1 - active) * _expected(cards, done + passes, players) + active * _expected(cards, done + acts, players)


def _pure(decides: Callable[[tuple[str, str]], bool]) -> list[dict[tuple[str, str], float]]:
    """All strategies without chance of one seat: a best answer is among them."""
    keys = [key for key in EQUILIBRIUM if decides(key)]
    return [dict(zip(keys, chances, strict=True)) for chances in product((0.0, 1.0), repeat=len(keys))]
