"""Kuhn poker (Kuhn 1950): three cards, one per player, with a single bet.

It is the smallest poker game in which bluffing pays, and the value of perfect play is known.

Both players put one chip in. A player may check, or bet one more chip. After a bet, the other player calls or
folds. The higher card wins the pot. The payoff is chips divided by 2, so it lies between −1 and 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations, product
from random import Random
from typing import cast

from marft_envs.textarena.games import GameRules, GameStart, MatchBoard

CARDS = "JQK"  # lowest first
GAME_VALUE = -1.0 / 36.0  # value of the game for the first player, as a payoff: −1/18 chips
MAX_CHIPS = 2.0  # maximum loss of a player, in chips
CARD_PATTERN = re.compile(r"You hold ([JQK])\.")
ACTION_PATTERN = re.compile(r"(You|They) (check|bet)\.")
# probability of bet or call in one equilibrium (the first player bets every king), by card and history
EQUILIBRIUM: Mapping[tuple[str, str], float] = {
    ("J", ""): 1 / 3, ("Q", ""): 0.0, ("K", ""): 1.0,
    ("J", "c"): 1 / 3, ("Q", "c"): 0.0, ("K", "c"): 1.0,
    ("J", "b"): 0.0, ("Q", "b"): 1 / 3, ("K", "b"): 1.0,
    ("J", "cb"): 0.0, ("Q", "cb"): 2 / 3, ("K", "cb"): 1.0,
}  # fmt: skip
MIXED_STATES = {("K", "")}  # states in which another equilibrium also plays the other move


class Kuhn(GameRules):
    """Kuhn poker with one hand per match; the deal defines the start."""

    def draw_start(self, random: Random) -> GameStart:
        """Deal the cards.

        Only six deals exist, and chance is part of the game. Each task is therefore a separate draw, identified by
        a number.
        """
        return GameStart(f"kuhn {random.getrandbits(62)}", {"cards": "".join(random.sample(CARDS, 2))})

    def start_match(self, start: Mapping[str, object]) -> KuhnMatch:
        """Start a match."""
        return KuhnMatch(cast("str", start["cards"]))

    def optimal_moves(self, text: str, options: Sequence[str]) -> tuple[str, ...]:
        """Return the moves with positive probability in some equilibrium."""
        state = information_set(text)
        passive, active = options
        if state in MIXED_STATES:
            return passive, active
        probability = EQUILIBRIUM[state]
        return (passive,) if probability == 0 else (active,) if probability == 1 else (passive, active)

    def perfect_move(self, text: str, options: Sequence[str], random: Random) -> str:
        """Sample a move from the equilibrium."""
        return options[int(random.random() < EQUILIBRIUM[information_set(text)])]


class KuhnMatch(MatchBoard):
    """One match."""

    def __init__(self, cards: str) -> None:
        super().__init__(Kuhn.players, Kuhn.cooperative)
        self.cards, self.history = cards, ""

    def state_text(self, player: int) -> str:
        """Return the player's own card and the history."""
        actions_text = "".join(
            f" {'You' if number % 2 == player else 'They'} {'check' if move == 'c' else 'bet'}."
            for number, move in enumerate(self.history)
        )
        return f"You hold {self.cards[player]}.{actions_text}"

    def options(self) -> tuple[str, ...]:
        """Return "check" and "bet", or after a bet "fold" and "call"."""
        return ("fold", "call") if self.history.endswith("b") else ("check", "bet")

    def apply_move(self, move: str) -> None:
        """Apply a move and end the match if it was the last."""
        self.history += move[0]
        self.current_player = 1 - self.current_player
        chips = chips_won(self.cards, self.history)
        if chips is not None:
            self.finish((chips / MAX_CHIPS, -chips / MAX_CHIPS))


def information_set(text: str) -> tuple[str, str]:
    """Return a player's information set: its card and the history, with c for check and b for bet."""
    return CARD_PATTERN.findall(text)[0], "".join(move[0] for _, move in ACTION_PATTERN.findall(text))


def chips_won(cards: str, history: str) -> float | None:
    """Return the chips won by the first player; None before the last move.

    >>> chips_won("QJ", "cc"), chips_won("QJ", "bc"), chips_won("QK", "cbf"), chips_won("QK", "cb")
    (1.0, 2.0, -1.0, None)
    """
    if history in ("", "c", "b", "cb"):
        return None
    if history.endswith("f"):
        return 1.0 if len(history) == 2 else -1.0
    stake = 1.0 if history == "cc" else 2.0
    return stake if CARDS.index(cards[0]) > CARDS.index(cards[1]) else -stake


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
