"""Our own text games: rules, what is hidden, who wins by perfect play, and what an illegal move costs."""

from __future__ import annotations

from functools import reduce
from itertools import product
from operator import xor
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.common.types import Observation
from marft_envs.textarena.environment import BUILT_IN_GAMES, scripted_move
from marft_envs.textarena.games import Hints, Nim, match_option
from marft_envs.textarena.kuhn import (
    DEALS,
    EQUILIBRIUM,
    GAME_VALUE,
    Kuhn,
    chips_won,
    compute_exploitability,
    estimate_strategy,
    expected_payoff,
    information_set,
)
from tests.playing_games import environment, match

SMALL = st.dictionaries(st.sampled_from(sorted(EQUILIBRIUM)), st.floats(0, 1), min_size=12)


class TestNim:
    @settings(max_examples=40)
    @given(heaps=st.lists(st.integers(1, 7), min_size=1, max_size=4), seed=st.integers(0, 2**32))
    def test_a_perfect_player_wins_from_wherever_the_exclusive_or_is_not_zero(
        self, heaps: list[int], seed: int
    ) -> None:
        rules, random = Nim(), Random(seed)
        game = rules.start_match({"heaps": heaps})
        perfect = 0 if reduce(xor, heaps) else 1
        while not game.is_over:
            shown, options = game.player_text(game.current_player), game.options()
            random_reply = game.current_player != perfect and perfect == 0
            game.play_move(random.choice(options) if random_reply else rules.perfect_move(shown, options, random))
        assert game.payoffs()[perfect] == 1.0
        assert sum(game.payoffs()) == 0.0

    def test_orders_of_the_same_heaps_stand_in_one_split(self) -> None:
        env = environment(game="nim", params={"heaps": 3, "largest": 9}, train_tasks=60, held_out_tasks=9)
        seen = [tuple(sorted(t.data["start"]["heaps"])) for s in ("train", "validation", "test") for t in env.tasks(s)]
        assert len(set(seen)) == len(seen)


class TestKuhn:
    def test_the_equilibrium_cannot_be_exploited_and_is_worth_what_is_known(self) -> None:
        assert compute_exploitability(EQUILIBRIUM) == pytest.approx(0.0, abs=1e-12)
        assert expected_payoff(EQUILIBRIUM, EQUILIBRIUM) == pytest.approx(GAME_VALUE)

    def test_whoever_always_bets_and_calls_loses_a_sixth(self) -> None:
        """Worked out by hand: against it a king earns 2 chips, a queen nothing and a jack loses 1, from both seats."""
        assert compute_exploitability(dict.fromkeys(EQUILIBRIUM, 1.0)) == pytest.approx(1 / 6)

    @given(strategy=SMALL, unknown=st.sets(st.sampled_from(sorted(EQUILIBRIUM)), max_size=4))
    @settings(max_examples=10)
    def test_what_is_not_known_of_a_strategy_is_taken_at_its_worst(
        self, strategy: dict[tuple[str, str], float], unknown: set[tuple[str, str]]
    ) -> None:
        known = {key: chance for key, chance in strategy.items() if key not in unknown}
        fillings = [dict(zip(unknown, chances, strict=True)) for chances in product((0.0, 1.0), repeat=len(unknown))]
        worst = max(compute_exploitability({**known, **filling}) for filling in fillings)
        assert compute_exploitability(known) == pytest.approx(worst)
        assert worst >= compute_exploitability(strategy) - 1e-9

    def test_what_its_own_choices_never_lead_to_does_not_matter(self) -> None:
        """Who always bets a king is never bet at after checking it."""
        assert EQUILIBRIUM["K", ""] == 1
        known = {key: chance for key, chance in EQUILIBRIUM.items() if key != ("K", "cb")}
        assert compute_exploitability(known) == pytest.approx(0.0, abs=1e-12)

    def test_how_somebody_plays_is_the_mean_of_how_it_was_seen_to(self) -> None:
        seen = estimate_strategy([("You hold K.", 0.5), ("You hold K.", 1.0), ("You hold J. They bet.", 0.25)])
        assert seen == {("K", ""): 0.75, ("J", "b"): 0.25}

    @given(strategy=SMALL, answer=SMALL)
    @settings(max_examples=25)
    def test_nobody_earns_more_against_a_strategy_than_its_exploitability(
        self, strategy: dict[tuple[str, str], float], answer: dict[tuple[str, str], float]
    ) -> None:
        both = (expected_payoff(answer, strategy) - expected_payoff(strategy, answer)) / 2
        assert both <= compute_exploitability(strategy) + 1e-9
        assert expected_payoff(strategy, answer) == pytest.approx(_by_loops(strategy, answer))

    @given(seed=st.integers(0, 2**32), deal=st.sampled_from(DEALS))
    def test_a_player_is_shown_its_own_card_alone(self, seed: int, deal: str) -> None:
        random, hand = Random(seed), Kuhn().start_match({"cards": deal})
        while not hand.is_over:
            shown = hand.player_text(hand.current_player)
            assert information_set(shown)[0] == deal[hand.current_player]
            assert deal[1 - hand.current_player] not in shown.replace("You", "").replace("They", "")
            hand.play_move(random.choice(hand.options()))
        assert sum(hand.payoffs()) == 0.0


def _by_loops(first: dict[tuple[str, str], float], second: dict[tuple[str, str], float]) -> float:
    """The mean over deals and over all five ways in which a hand goes."""
    total = 0.0
    for deal in DEALS:
        one, two = deal
        bets, bets_later, calls = first[one, ""], second[two, "c"], second[two, "b"]
        calls_later = first[one, "cb"]
        for chance, done in (
            ((1 - bets) * (1 - bets_later), "cc"),
            ((1 - bets) * bets_later * (1 - calls_later), "cbf"),
            ((1 - bets) * bets_later * calls_later, "cbc"),
            (bets * (1 - calls), "bf"),
            (bets * calls, "bc"),
        ):
            chips = chips_won(deal, done)
            assert chips is not None
            total += chance * chips / 2
    return total / len(DEALS)


class TestHints:
    @given(seed=st.integers(0, 2**32), objects=st.integers(2, 9))
    def test_a_perfect_pair_finds_the_object_in_three_rounds_and_earns_the_same(self, seed: int, objects: int) -> None:
        random, rules = Random(seed), Hints(objects=objects)
        _, start = rules.draw_start(random)
        game = rules.start_match(start)
        while not game.is_over:
            game.play_move(rules.perfect_move(game.player_text(game.current_player), game.options(), random))
        assert game.payoffs()[0] == game.payoffs()[1] > 0

    def test_who_guesses_is_not_told(self) -> None:
        game = Hints().start_match({"objects": ["red cup", "blue hat", "red hat"], "target": 2})
        assert "It is 2." in game.player_text(0)
        assert "It is" not in game.player_text(1)
        assert game.options() == ("blue", "hat")

    def test_a_wrong_guess_costs_a_round(self) -> None:
        game = Hints(rounds=2).start_match({"objects": ["red cup", "blue hat", "red hat"], "target": 2})
        for move in ("hat", "3", "blue", "2"):
            game.play_move(move)
        assert game.payoffs() == (0.5, 0.5)
        assert game.is_over


@pytest.mark.parametrize("game", sorted(BUILT_IN_GAMES))
def test_one_illegal_move_is_forgiven_and_two_in_a_row_are_not(game: str) -> None:
    env = environment(game=game)
    shown, last = match(env, env.tasks("train")[0], lambda *_: "take nothing")
    assert len(shown) == 2
    assert "not allowed" not in shown[0].full_text
    assert "not allowed" in shown[1].full_text
    assert shown[0].turn == shown[1].turn
    loser = shown[0].turn[0]
    if game == "hints":
        assert (last.reward, last.success) == (0.0, False)
    else:
        assert last.agent_rewards[loser] == -1.0
        assert sum(last.agent_rewards.values()) == 0.0
    assert last.info["measures"]["illegal_moves"] == 1.0


def test_an_illegal_move_is_told_to_whoever_made_it_alone() -> None:
    game = Nim().start_match({"heaps": [2, 2]})
    game.play_move("nothing")
    assert "not allowed" in game.player_text(0)
    assert "not allowed" not in game.player_text(1)


def test_a_legal_move_between_two_illegal_ones_forgives_the_first() -> None:
    env, said = environment(game="nim", params={"heaps": 2, "largest": 30}), []

    def move(role: str, shown: Observation) -> str:
        said.append(role)
        mine = said.count(role)
        return "nothing" if mine % 2 else shown.options[role][0]

    _, last = match(env, env.tasks("train")[0], move)
    assert last.info["measures"]["illegal_moves"] == 0.5
    assert "Heaps" not in last.observation.text


@pytest.mark.parametrize("text", ["take 2 from B", " Take 2  from b. ", "[take 2 from B]", "take 2 from B\n"])
def test_spelling_that_changes_nothing_is_the_same_move(text: str) -> None:
    assert match_option(text, ("take 1 from B", "take 2 from B")) == "take 2 from B"
    assert match_option(text + "2", ("take 1 from B", "take 2 from B")) == ""


@pytest.mark.parametrize("game", sorted(BUILT_IN_GAMES))
def test_a_script_without_skill_moves_at_random_and_with_skill_soundly(game: str) -> None:
    env = environment(game=game)
    assert env.rules

    def share(skill: float) -> float:
        random, sound = Random(0), []
        for task in env.tasks("train"):
            _, last = match(
                env, task, lambda role, o: scripted_move(env.rules, o.for_role(role), o.options[role], random, skill)
            )
            sound.append(last.info["measures"]["sound_moves"])
        return sum(sound) / len(sound)

    assert share(1.0) == 1.0
    assert share(0.0) < 0.9
