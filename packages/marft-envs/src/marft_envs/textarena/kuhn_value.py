"""What a way of playing Kuhn poker is worth, exactly: against another one, and against whoever answers it best."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations, product

from marft_envs.textarena.kuhn import CARDS, CHIPS, EQUILIBRIUM, known, won

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

    Where a strategy is known in part, the rest is what is worst for it: the result is no less than the truth, and the
    truth where its own choices never lead to what is not known.

    >>> round(exploitability(EQUILIBRIUM), 9)
    0.0
    """
    begins, follows = (list(_filled(strategy, first)) for first in (True, False))
    as_second = max(value(answer, mine) for mine in follows for answer in _filled({}, first=True))
    as_first = max(-value(mine, answer) for mine in begins for answer in _filled({}, first=False))
    return (as_second + as_first) / 2


def strategy_of(decisions: Iterable[tuple[str, float]]) -> Strategy:
    """How somebody plays, where it has been seen to play.

    Args:
        decisions: what was shown, and the chance with which it then bet or called.
    """
    seen: dict[tuple[str, str], list[float]] = {}
    for shown, chance in decisions:
        seen.setdefault(known(shown), []).append(chance)
    return {key: sum(chances) / len(chances) for key, chances in seen.items()}


def _expected(cards: str, done: str, players: tuple[Strategy, Strategy]) -> float:
    chips = won(cards, done)
    if chips is not None:
        return chips / CHIPS
    player = len(done) % 2
    active = players[player][cards[player], done]
    passes, acts = ("f", "c") if done.endswith("b") else ("c", "b")
    return (1 - active) * _expected(cards, done + passes, players) + active * _expected(cards, done + acts, players)


def _filled(strategy: Strategy, first: bool) -> Iterator[Strategy]:
    """What a strategy does in one seat, with every choice without chance in place of what is not known. Where nothing
    is known, these are all strategies without chance: a best answer is among them."""
    keys = [key for key in EQUILIBRIUM if (key in FIRST) == first]
    missing = [key for key in keys if key not in strategy]
    for chances in product((0.0, 1.0), repeat=len(missing)):
        yield {**{key: strategy[key] for key in keys if key in strategy}, **dict(zip(missing, chances, strict=True))}
