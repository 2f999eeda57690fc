"""Exact value of a strategy in Kuhn poker, against another strategy and against a best response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations, product

from marft_envs.textarena.kuhn import CARDS, CHIPS, EQUILIBRIUM, known, won

Strategy = Mapping[tuple[str, str], float]  # probability of bet or call, by card and history
DEALS = ["".join(cards) for cards in permutations(CARDS, 2)]
FIRST = [key for key in EQUILIBRIUM if len(key[1]) % 2 == 0]  # information sets of the first player


def value(first: Strategy, second: Strategy) -> float:
    """Return the first player's expected payoff, from −1 to 1.

    >>> round(value(EQUILIBRIUM, EQUILIBRIUM) * 36, 9)
    -1.0
    """
    return sum(_expected(cards, "", (first, second)) for cards in DEALS) / len(DEALS)


def exploitability(strategy: Strategy) -> float:
    """Return the exploitability of a strategy: NashConv / 2 in self-play, 0 for perfect play.

    It is the mean, over both players, of a best response's advantage over its fair share. Unknown parts of the
    strategy are filled with the worst case, so the result is an upper bound. The result is exact if the strategy
    never reaches its unknown parts.

    >>> round(exploitability(EQUILIBRIUM), 9)
    0.0
    """
    begins, follows = (list(_filled(strategy, first)) for first in (True, False))
    as_second = max(value(answer, mine) for mine in follows for answer in _filled({}, first=True))
    as_first = max(-value(mine, answer) for mine in begins for answer in _filled({}, first=False))
    return (as_second + as_first) / 2


def strategy_of(decisions: Iterable[tuple[str, float]]) -> Strategy:
    """Estimate a strategy from observed decisions.

    Args:
        decisions: for each decision, the observation and the probability of bet or call.
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
    """Yield every completion for one player's strategy, with deterministic choices in the unknown states.

    An empty strategy yields all deterministic strategies, which include a best response.
    """
    keys = [key for key in EQUILIBRIUM if (key in FIRST) == first]
    missing = [key for key in keys if key not in strategy]
    for chances in product((0.0, 1.0), repeat=len(missing)):
        yield {**{key: strategy[key] for key in keys if key in strategy}, **dict(zip(missing, chances, strict=True))}
