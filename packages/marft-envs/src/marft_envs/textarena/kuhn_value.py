"""Exact value of a strategy in Kuhn poker, against another strategy and against a best response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import permutations, product

from marft_envs.textarena.kuhn import CARDS, EQUILIBRIUM, MAX_CHIPS, chips_won, information_set

Strategy = Mapping[tuple[str, str], float]  # probability of bet or call, by card and history
DEALS = ["".join(cards) for cards in permutations(CARDS, 2)]
FIRST_PLAYER_STATES = [key for key in EQUILIBRIUM if len(key[1]) % 2 == 0]  # information sets of the first player


def expected_payoff(first: Strategy, second: Strategy) -> float:
    """Return the first player's expected payoff, from −1 to 1.

    >>> round(expected_payoff(EQUILIBRIUM, EQUILIBRIUM) * 36, 9)
    -1.0
    """
    return sum(_expected_from(cards, "", (first, second)) for cards in DEALS) / len(DEALS)


def compute_exploitability(strategy: Strategy) -> float:
    """Return the exploitability of a strategy: NashConv / 2 in self-play, 0 for perfect play.

    It is the mean, over both players, of a best response's advantage over its fair share. Unknown parts of the
    strategy are filled with the worst case, so the result is an upper bound. The result is exact if the strategy
    never reaches its unknown parts.

    >>> round(compute_exploitability(EQUILIBRIUM), 9)
    0.0
    """
    first_strategies, second_strategies = (list(_complete_strategies(strategy, first)) for first in (True, False))
    as_second = max(
        expected_payoff(response, own_strategy)
        for own_strategy in second_strategies
        for response in _complete_strategies({}, first=True)
    )
    as_first = max(
        -expected_payoff(own_strategy, response)
        for own_strategy in first_strategies
        for response in _complete_strategies({}, first=False)
    )
    return (as_second + as_first) / 2


def estimate_strategy(decisions: Iterable[tuple[str, float]]) -> Strategy:
    """Estimate a strategy from observed decisions.

    Args:
        decisions: for each decision, the observation and the probability of bet or call.
    """
    seen: dict[tuple[str, str], list[float]] = {}
    for text, probability in decisions:
        seen.setdefault(information_set(text), []).append(probability)
    return {key: sum(probabilities) / len(probabilities) for key, probabilities in seen.items()}


def _expected_from(cards: str, history: str, players: tuple[Strategy, Strategy]) -> float:
    chips = chips_won(cards, history)
    if chips is not None:
        return chips / MAX_CHIPS
    player = len(history) % 2
    active_probability = players[player][cards[player], history]
    passive_action, active_action = ("f", "c") if history.endswith("b") else ("c", "b")
    return (1 - active_probability) * _expected_from(
        cards, history + passive_action, players
    ) + active_probability * _expected_from(cards, history + active_action, players)


def _complete_strategies(strategy: Strategy, first: bool) -> Iterator[Strategy]:
    """Yield every completion for one player's strategy, with deterministic choices in the unknown states.

    An empty strategy yields all deterministic strategies, which include a best response.
    """
    keys = [key for key in EQUILIBRIUM if (key in FIRST_PLAYER_STATES) == first]
    missing = [key for key in keys if key not in strategy]
    for probabilities in product((0.0, 1.0), repeat=len(missing)):
        yield {
            **{key: strategy[key] for key in keys if key in strategy},
            **dict(zip(missing, probabilities, strict=True)),
        }
