"""Who beats whom: ratings of known players are found again, matches are played from both sides, and what is shown of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.evaluation.league.matches import League, Pairing, attempts_of, league_of, pairing_of
from marft.evaluation.league.ratings import SPREAD, Tally, ratings
from marft.evaluation.league.versions import casting, sides_of, versions_of
from marft.evaluation.league.written import headline, tables, write_league
from marft.league.elo import SCALE, expected_score
from marft.runs.folder import RunFolder
from marft.training import train
from marft.types import Episode, Observation, Task, Transition
from tests.nights import BY_NIGHT
from tests.test_league import league


def chances(mine: float, theirs: float, draw: float) -> tuple[float, float, float]:
    """Davidson's of winning, drawing and losing, by Elo and ν."""
    a, b = math.exp(mine / SCALE), math.exp(theirs / SCALE)
    whole = a + b + draw * math.sqrt(a * b)
    return a / whole, draw * math.sqrt(a * b) / whole, b / whole


def simulated(elo: list[float], matches: int, draw: float, seed: int) -> list[Tally]:
    random = np.random.default_rng(seed)
    found = []
    for i in range(len(elo)):
        for j in range(i + 1, len(elo)):
            won, drawn, lost = random.multinomial(matches, chances(elo[i], elo[j], draw))
            found.append(Tally(i, j, int(won), int(drawn), int(lost)))
    return found


STRENGTHS = [-200.0, -50.0, 50.0, 200.0]


@pytest.mark.parametrize("draw", [0.0, 0.7])
def test_players_of_known_strength_are_rated_by_it(draw: float) -> None:
    found = ratings(4, simulated(STRENGTHS, 20_000, draw, 1))
    assert [rating.elo for rating in found] == pytest.approx(STRENGTHS, abs=6.0)
    assert sum(rating.elo for rating in found) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("draw", [0.0, 0.7])
def test_intervals_hold_the_truth_nineteen_times_in_twenty(draw: float) -> None:
    held = []
    for seed in range(150):
        found = ratings(4, simulated(STRENGTHS, 60, draw, seed))
        held += [r.interval[0] <= truth <= r.interval[1] for r, truth in zip(found, STRENGTHS, strict=True)]
    assert 0.92 < float(np.mean(held)) < 0.98


@pytest.mark.slow
@given(
    results=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)), min_size=3, max_size=3).filter(
        lambda rows: sum(map(sum, rows)) > 0
    )
)
def test_ratings_are_the_likeliest(results: list[tuple[int, int, int]]) -> None:
    """No step in any direction makes what came about, under the prior, likelier."""
    tallies = [Tally(i, j, *row) for (i, j), row in zip([(0, 1), (0, 2), (1, 2)], results, strict=True)]
    elo = [rating.elo for rating in ratings(3, tallies)]
    some_drawn = any(tally.drawn for tally in tallies)

    def likelihood(strengths: list[float], draw: float) -> float:
        total = -sum(s * s for s in strengths) / (2 * (SPREAD * SCALE) ** 2)
        total -= math.log(draw) ** 2 / (2 * SPREAD**2) if some_drawn else 0.0
        for tally in tallies:
            odds = chances(strengths[tally.first], strengths[tally.second], draw if some_drawn else 0.0)
            counts = (tally.won, tally.drawn, tally.lost)
            total += sum(count * math.log(p) for count, p in zip(counts, odds, strict=True) if count)
        return total

    def best(strengths: list[float]) -> float:
        if not some_drawn:
            return likelihood(strengths, 0.0)
        low, high = -9.0, 9.0
        for _ in range(80):  # the likelihood is concave in ln ν
            a, b = low + (high - low) / 3, high - (high - low) / 3
            if likelihood(strengths, math.exp(a)) < likelihood(strengths, math.exp(b)):
                low = a
            else:
                high = b
        return likelihood(strengths, math.exp(low))

    at = best(elo)
    for player in range(3):
        for by in (-5.0, 5.0):
            moved = [e + by * (n == player) - by / 3 for n, e in enumerate(elo)]
            assert best(moved) <= at + 1e-9


def test_a_score_and_a_difference_in_rating_say_the_same_of_two_players() -> None:
    found = ratings(2, [Tally(0, 1, won=3000, lost=1000)])
    assert expected_score(found[0].elo, found[1].elo) == pytest.approx(0.75, abs=1e-3)


def test_whoever_has_won_everything_has_a_rating_all_the_same() -> None:
    found = ratings(2, [Tally(0, 1, won=10)])
    assert 100 < found[0].elo < 1000
    with pytest.raises(ValueError, match="no matches"):
        ratings(2, [Tally(0, 1)])


def of_three() -> League:
    tallies = [Tally(0, 1, 1, 1, 2), Tally(0, 2), Tally(1, 2, 0, 0, 4)]
    pairings = [Pairing(tally, tally, tally, 0.0, 4 - tally.matches) for tally in tallies]
    return League("r", ["base", "step_000001", "step_<2>"], ratings(3, tallies), pairings, ["4 of 12 matches …"])


class TestShown:
    def test_the_matrix_reads_from_both_sides(self) -> None:
        found = of_three()
        assert found.score(0, 1) == 0.375
        assert found.score(1, 0) == 0.625
        assert found.score(0, 2) is None
        rated, crossed = tables(found)
        assert rated.cells[1][3] == "8"
        assert crossed.cells[0] == ["base", "", "38%", ""]
        assert "step_<2>" in headline(found)

    def test_what_is_written_is_escaped_and_plain(self, tmp_path: Path) -> None:
        page = write_league(tmp_path, of_three())
        text = page.read_text(encoding="utf-8")
        assert "step_<2>" not in text.split("</figure>")[1]
        assert "step_&lt;2&gt;" in text
        written = json.loads((tmp_path / "league.json").read_text(encoding="utf-8"))
        assert written["scores"][1] == [0.625, None, 0.0]
        assert written["versions"][0] == "base"


class TestMatches:
    def test_every_start_is_played_from_both_sides_and_no_start_twice_from_one(self, tmp_path: Path) -> None:
        run, tasks = league(tmp_path), [Task("t0", "…"), Task("t1", "…")]
        made = attempts_of(run, sides_of(run), tasks, ["base", "step_000001"], 8)
        first, second = made[:4], made[4:]
        assert [(a.task.id, a.sample) for a in first] == [("t0", 0), ("t1", 0), ("t0", 1), ("t1", 1)]
        assert [(a.task.id, a.sample) for a in second] == [(a.task.id, a.sample) for a in first]
        assert {a.policies["north"] for a in first} == {a.policies["south"] for a in second} == {"player@base"}
        assert {a.policies["south"] for a in first} == {a.policies["north"] for a in second} == {"player@step_000001"}
        assert len({(a.stream, a.task.id, a.sample) for a in made}) == 8

    def test_a_version_is_credited_with_what_its_side_earned(self) -> None:
        """It wins its two matches on the first side, and of those on the second one is lost, one cannot be scored."""
        earned = [(1.0, "terminated"), (0.5, "terminated"), (1.0, "terminated"), (1.0, "failed")]
        for own in (False, True):  # paid to the team, or to each side
            played = [
                Episode(
                    Task("t", "…"), "league", 0, (), status,  # type: ignore[arg-type]
                    (Transition(Observation("…"), 0.0 if own else paid, {"north": paid, "south": -paid} if own else {}),),
                )
                for paid, status in earned
            ]  # fmt: skip
            found = pairing_of((0, 1), ("north",), played)
            assert (found.tally.won, found.tally.drawn, found.tally.lost, found.failed) == (2, 0, 1, 1)
            assert (found.on_first_side.won, found.on_second_side.lost) == (2, 1)
            assert found.points == pytest.approx((1.0 + 0.5 - 1.0) / 3)


class TestSides:
    def test_an_opponent_s_seat_is_taken_by_the_learner_s_own_policy(self, tmp_path: Path) -> None:
        run = league(tmp_path)
        sides = sides_of(run)
        assert sides == (("north",), ("south",))
        assert casting(run, sides, ["step_000001", "base"]) == {
            "north": "player@step_000001",
            "south": "player@base",
        }

    def test_where_both_sides_learn_each_is_played_by_its_own_policy(self, tmp_path: Path) -> None:
        run = league(
            tmp_path,
            policies={"a": {"model": "base"}, "b": {"model": "base"}},
            agents=[
                {"role": "north", "policy": "a", "answers": True},
                {"role": "south", "policy": "b"},
            ],
            environment={"name": "textarena"},
            algorithm={"name": "rae"},
        )
        assert casting(run, sides_of(run), ["x", "y"]) == {"north": "a@x", "south": "b@y"}

    def test_a_frozen_teammate_is_the_same_on_every_version_s_side(self, tmp_path: Path) -> None:
        run = league(
            tmp_path,
            policies={"player": {"model": "base"}, "adviser": {"model": "base", "train": "frozen"}},
            agents=[
                {"role": "adviser", "policy": "adviser"},
                {"role": "north", "policy": "player", "answers": True},
                {"role": "south", "policy": "player"},
            ],
            environment={"name": "textarena", "seats": [["adviser", "north"], ["south"]]},
            algorithm={"name": "rae"},
        )
        assert casting(run, sides_of(run), ["x", "y"]) == {
            "adviser": "adviser",
            "north": "player@x",
            "south": "player@y",
        }

    def test_a_game_that_is_played_together_has_no_league(self, tmp_path: Path) -> None:
        changes: dict[str, Any] = {
            "policies": {"player": {"model": "base"}, "rival": {"model": "base"}},
            "environment": {"name": "textarena", "game": "hints"},
        }
        with pytest.raises(ValueError, match="a league is of games between two sides"):
            sides_of(league(tmp_path, **changes))

    def test_a_run_without_checkpoints_has_no_versions(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="no checkpoint yet"):
            versions_of(league(tmp_path), RunFolder(tmp_path), 8)


@BY_NIGHT
@pytest.mark.slow
def test_versions_of_a_run_play_each_other_from_both_sides(tmp_path: Path) -> None:
    run, folder = (
        league(tmp_path, "--training.steps", "2", "--checkpoints.keep_last", "1"),
        RunFolder(tmp_path / "league"),
    )
    train(run, folder)
    assert list(versions_of(run, folder, 8)) == ["base", "step_000001", "step_000002"]  # the first is in the pool alone
    assert list(versions_of(run, folder, 2)) == ["base", "step_000002"]
    found = league_of(run, folder, 8, 8, lambda _=None: None)
    assert [pairing.tally.matches for pairing in found.pairings] == [8, 8, 8]
    for pairing in found.pairings:
        assert pairing.on_first_side.matches == pairing.on_second_side.matches == 4
        assert pairing.failed == 0
    again = league_of(run, folder, 8, 8, lambda _=None: None)
    assert again == found
    with pytest.raises(ValueError, match="give an even number"):
        league_of(run, folder, 7, 8, lambda _=None: None)
